//! The tree of groups below the mount: who is whose parent, and who has a limit.
//!
//! Owns walking up and down. Groups come and go while it walks; one that vanishes is left out, never an error.

use std::io;
use std::path::{Path, PathBuf};

use super::bandwidth::{Bandwidth, Quota};
use super::group::{Group, GroupError};
use super::hierarchy::Hierarchy;

/// One group as the walk saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The group.
    pub group: Group,
    /// Path below the mount; empty for the mount itself.
    pub path: PathBuf,
    /// Its id, see [`Group::id`].
    pub id: u64,
    /// Id of its parent; `None` for the topmost group this mount shows (which in a container may have parents out of sight).
    pub parent: Option<u64>,
    /// Its own bandwidth; `None` where it has no such files (v2: the root, and groups cpu is not enabled for).
    pub bandwidth: Option<Bandwidth>,
}

/// All groups below the mount, the mount first and every parent before its children; siblings by name.
///
/// # Errors
/// [`GroupError`] when the mount itself cannot be read, or a file holds what the kernel never writes.
pub fn walk(hierarchy: &Hierarchy) -> Result<Vec<Node>, GroupError> {
    let root = hierarchy.root();
    root.id()?;
    let mut nodes = Vec::new();
    let mut waiting = vec![(root, None)];
    while let Some((group, parent)) = waiting.pop() {
        let Some(node) = node(hierarchy, &group, parent)? else { continue };
        let mut children = group.children()?;
        children.sort_by(|a, b| b.path().cmp(a.path()));
        waiting.extend(children.into_iter().map(|child| (child, Some(node.id))));
        nodes.push(node);
    }
    Ok(nodes)
}

/// `group` and its ancestors up to the mount, the group first.
///
/// # Errors
/// [`GroupError`] when one of them is gone or unreadable.
pub fn ancestors(hierarchy: &Hierarchy, group: &Group) -> Result<Vec<Node>, GroupError> {
    let groups: Vec<Group> = group
        .path()
        .ancestors()
        .take_while(|path| path.starts_with(&hierarchy.mount))
        .map(|path| Group::new(hierarchy.version, path.to_owned()))
        .collect();
    let looks = groups.iter().map(look).collect::<Result<Vec<_>, _>>()?;
    let parents: Vec<Option<u64>> = looks.iter().skip(1).map(|(id, _)| Some(*id)).chain([None]).collect();
    Ok(groups
        .into_iter()
        .zip(looks)
        .zip(parents)
        .map(|((group, (id, bandwidth)), parent)| {
            let path = relative(hierarchy, group.path());
            Node { group, path, id, parent, bandwidth }
        })
        .collect())
}

/// One group; `None` if it is gone.
///
/// # Errors
/// [`GroupError`] when it is unreadable, or a file holds what the kernel never writes.
pub(super) fn node(hierarchy: &Hierarchy, group: &Group, parent: Option<u64>) -> Result<Option<Node>, GroupError> {
    let Some((id, bandwidth)) = present(look(group))? else { return Ok(None) };
    let path = relative(hierarchy, group.path());
    Ok(Some(Node { group: group.clone(), path, id, parent, bandwidth }))
}

impl Node {
    /// Whether this very group has a quota (its ancestors may have others).
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.bandwidth.is_some_and(|bandwidth| bandwidth.quota != Quota::Unlimited)
    }
}

fn look(group: &Group) -> Result<(u64, Option<Bandwidth>), GroupError> {
    Ok((group.id()?, Bandwidth::read(group)?))
}

/// `None` for a group that vanished. Its files go before its directory (`cgroup_destroy_locked`), so one of them may be missing already.
fn present<T>(looked: Result<T, GroupError>) -> Result<Option<T>, GroupError> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(GroupError::Gone { .. }) => Ok(None),
        Err(GroupError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn relative(hierarchy: &Hierarchy, path: &Path) -> PathBuf {
    path.strip_prefix(&hierarchy.mount).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::hierarchy::Version;
    use super::*;

    const POD: &str = include_str!("../../tests/data/cgroup/v2-systemd-pod.tree");

    /// Lays a recorded tree (`### path` lines, each followed by the file's text) out in a directory.
    fn recorded() -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().expect("a directory");
        for file in POD.split("### ").skip(1) {
            let (path, text) = file.split_once('\n').expect("a path line");
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let mount = dir.path().to_owned();
        (dir, Hierarchy { version: Version::V2, mount, mount_root: "/".into() })
    }

    #[test]
    fn a_recorded_pod_shows_its_two_levels_of_the_same_quota() {
        let (_dir, hierarchy) = recorded();
        let nodes = walk(&hierarchy).expect("walked");
        let limited: Vec<_> = nodes.iter().filter(|node| node.is_limited()).collect();
        assert_eq!(limited.len(), 2, "{nodes:#?}");
        assert!(
            limited.iter().all(|node| node.bandwidth.is_some_and(|bandwidth| bandwidth.quota == Quota::Us(20_000)))
        );
        assert_eq!(limited[1].parent, Some(limited[0].id));
        assert!(limited[1].path.starts_with(&limited[0].path));
        assert_eq!((nodes[0].path.as_path(), nodes[0].parent, nodes[0].bandwidth), (Path::new(""), None, None));
    }

    #[test]
    fn ancestors_go_from_the_container_up_to_the_mount_with_the_same_ids_as_the_walk() {
        let (_dir, hierarchy) = recorded();
        let nodes = walk(&hierarchy).expect("walked");
        let container = nodes.iter().rfind(|node| node.is_limited()).expect("a container");
        let chain = ancestors(&hierarchy, &container.group).expect("a chain");
        assert_eq!(chain.len(), 5);
        assert_eq!(&chain[0], container);
        assert_eq!(chain.last(), nodes.first());
        assert!(chain.iter().zip(&chain[1..]).all(|(child, parent)| child.parent == Some(parent.id)));
    }

    #[test]
    fn a_group_that_is_gone_is_left_out_of_a_walk_but_is_an_error_for_ancestors() {
        let (_dir, hierarchy) = recorded();
        let gone = hierarchy.group("kubepods.slice/no-such.slice");
        assert_eq!(present(look(&gone)).expect("no error"), None);
        assert!(matches!(ancestors(&hierarchy, &gone), Err(GroupError::Gone { .. })));
    }

    #[test]
    fn a_group_that_loses_its_files_during_a_walk_is_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        for group in ["half", "whole"] {
            fs::create_dir(dir.path().join(group)).expect("made");
            fs::write(dir.path().join(group).join("cpu.cfs_quota_us"), "-1\n").expect("written");
        }
        fs::write(dir.path().join("whole/cpu.cfs_period_us"), "100000\n").expect("written");
        let hierarchy = Hierarchy { version: Version::V1, mount: dir.path().to_owned(), mount_root: "/".into() };
        let paths: Vec<_> = walk(&hierarchy).expect("walked").into_iter().map(|node| node.path).collect();
        assert_eq!(paths, [PathBuf::new(), PathBuf::from("whole")]);
    }

    #[test]
    fn members_of_a_recorded_container_are_its_processes() {
        let (_dir, hierarchy) = recorded();
        let busy = walk(&hierarchy).expect("walked").into_iter().filter(|node| {
            node.group.read_if_there("cgroup.procs").expect("read").is_some()
                && !node.group.processes().expect("parses").is_empty()
        });
        assert_eq!(busy.count(), 2, "pause and the container");
    }
}
