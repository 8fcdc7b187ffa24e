//! Groups that a killed run left behind.
//!
//! Owns the decision what is stale. A tree is, when its name says that this project made it, its maker is gone by `/proc`, nobody holds
//! its lock (a maker in another pid namespace has no entry in our `/proc`), and no tree inside it is in use.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::group::{Group, GroupError};
use super::hierarchy::Hierarchy;
use super::owner::Owner;
use super::remove::{self, Left, Removal};

/// A tree left behind, and what removing it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Its topmost group.
    pub path: PathBuf,
    /// Who made it.
    pub owner: Owner,
    /// What was killed and removed.
    pub removal: Removal,
}

/// Finds all stale trees below the mount, ends what runs in them and removes them. Touches nothing else.
///
/// # Errors
/// [`GroupError`] when the hierarchy cannot be walked. What could not be removed is in the [`Removal`]s.
pub fn remove_stale(hierarchy: &Hierarchy) -> Result<Vec<Stale>, GroupError> {
    let groups = remove::leaves_first(&hierarchy.root())?;
    // Parents first: a stale tree takes what is inside it along.
    let ours: Vec<(&Group, Owner)> =
        groups.iter().rev().filter_map(|group| Some((group, owner_of(group.path())?))).collect();
    let mut found: Vec<Stale> = Vec::new();
    for (group, owner) in &ours {
        if found.iter().any(|stale| group.path().starts_with(&stale.path)) || is_in_use(group, *owner) {
            continue;
        }
        let inside = ours.iter().find(|(other, owner)| {
            other.path() != group.path() && other.path().starts_with(group.path()) && is_in_use(other, *owner)
        });
        let removal = match inside {
            Some((other, owner)) => Removal {
                left: vec![Left {
                    path: group.path().to_owned(),
                    why: format!(
                        "{} inside it is in use by process {}; end that first",
                        other.path().display(),
                        owner.pid
                    ),
                }],
                ..Removal::default()
            },
            None => remove::remove_tree(group, remove::DEADLINE),
        };
        found.push(Stale { path: group.path().to_owned(), owner: *owner, removal });
    }
    Ok(found)
}

fn owner_of(path: &Path) -> Option<Owner> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Whether the maker lives. A lock that cannot be tried for another reason than being held says nothing.
fn is_in_use(group: &Group, owner: Owner) -> bool {
    let is_locked = || {
        File::open(group.path())
            .is_ok_and(|directory| matches!(directory.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
    };
    owner.is_alive() || is_locked()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::hierarchy::Version;
    use super::*;

    const DEAD: &str = "throttle-1-18446744073709551615";

    fn hierarchy(dir: &tempfile::TempDir, groups: &[&str]) -> Hierarchy {
        for group in groups {
            fs::create_dir_all(dir.path().join(group)).expect("made");
        }
        Hierarchy { version: Version::V2, mount: dir.path().to_owned(), mount_root: "/".into() }
    }

    #[test]
    fn trees_of_dead_owners_are_removed_at_any_depth_and_others_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let live = Owner::me().expect("own stat").to_string();
        let (deep, own) = (format!("a.slice/{DEAD}"), format!("{live}/driver"));
        let hierarchy = hierarchy(&dir, &[&deep, &own, "throttle-x", "throttle-1", "kubepods/pod1"]);
        fs::create_dir_all(dir.path().join(&deep).join("pod/container")).expect("made");
        let found = remove_stale(&hierarchy).expect("walked");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].path.clone(), found[0].removal.removed.len()), (dir.path().join(&deep), 3));
        assert!(found[0].removal.is_complete());
        for kept in [&own, "a.slice", "throttle-x", "throttle-1", "kubepods/pod1"] {
            assert!(dir.path().join(kept).is_dir(), "{kept}");
        }
    }

    #[test]
    fn a_locked_tree_is_in_use_though_its_owner_has_no_pid_here() {
        let dir = tempfile::tempdir().expect("a directory");
        let hierarchy = hierarchy(&dir, &[DEAD]);
        let holder = File::open(dir.path().join(DEAD)).expect("opened");
        holder.lock().expect("locked");
        assert_eq!(remove_stale(&hierarchy).expect("walked"), []);
        drop(holder);
        assert_eq!(remove_stale(&hierarchy).expect("walked").len(), 1);
    }

    #[test]
    fn a_dead_tree_around_a_live_one_is_left_and_said_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = format!("{DEAD}/driver/{}", Owner::me().expect("own stat"));
        let hierarchy = hierarchy(&dir, &[&inner]);
        let found = remove_stale(&hierarchy).expect("walked");
        assert_eq!(found.len(), 1);
        assert!(found[0].removal.to_string().contains("is in use by process"), "{}", found[0].removal);
        assert!(dir.path().join(inner).is_dir());
    }
}
