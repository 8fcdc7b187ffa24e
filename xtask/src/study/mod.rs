//! `cargo xtask study`: runs the arms that PREREG.md names, one folder each, and refuses runs that do not count.

mod arms;
mod attempt;
mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::verify::{self, Prereg, RESULTS, STUDY};
use crate::{interrupt, setup, sweep};
use arms::{Arm, Setting};
use attempt::{Ended, Place};

/// What `cargo xtask study` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run this arm alone; may be given several times [default: all native arms].
    #[arg(long = "arm", value_name = "NAME")]
    arms: Vec<String>,
    /// List arms, settings and the time they take, and run nothing.
    #[arg(long)]
    list: bool,
    /// Where the folders go.
    #[arg(long, default_value = RESULTS, value_name = "DIR")]
    out: PathBuf,
    /// Bring in a run that a guest made as the one of its arm, instead of running it here.
    #[arg(long, value_name = "DIR", requires = "arms")]
    from: Option<PathBuf>,
}

/// A setting is tried so often.
const TRIES: usize = 3;

/// Runs the command. 0 = all arms are there; 1 = a run was refused too often; 3 = this machine cannot do it; 130 = interrupted. A
/// finished setting is not run again.
///
/// # Errors
/// Files cannot be read or written, the build fails, or the arms are unknown.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&options.arms)?;
    let prereg = committed_predictions()?;
    if let Some(from) = &options.from {
        let [arm] = chosen.as_slice() else { bail!("--from is the run of one arm; name it with --arm") };
        bring_in(arm, from, &options.out, &prereg)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        chosen.iter().all(|arm| !arm.name.starts_with("guest-")),
        "guests' arms are brought in: name their run with --from"
    );
    setup::run(&setup::Options {})?;
    let program = sweep::build()?;
    interrupt::listen()?;
    for arm in &chosen {
        let place = Place { folder: folder(&options.out, arm, &kernel()?)?, program: program.clone() };
        let mut study =
            Study::open(&place.folder, arm, &format!("cargo xtask study --arm {}", arm.name), &prereg.digest)?;
        for setting in &arm.settings {
            match one(&mut study, &place, arm, setting)? {
                Ended::Kept => {}
                Ended::Refused => return Ok(ExitCode::FAILURE),
                Ended::CannotRun => return Ok(ExitCode::from(3)),
                Ended::Interrupted => return Ok(ExitCode::from(130)),
            }
        }
        if options.out == Path::new(RESULTS) {
            verify::write(&options.out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list() {
    let mut total = 0;
    for arm in arms::all() {
        println!("{}: {}", arm.name, arm.question);
        for setting in &arm.settings {
            let seconds = setting.expected().as_secs();
            total += seconds;
            println!(
                "    {:<14} {:>3}:{:02}  {}",
                setting.name,
                seconds / 60,
                seconds % 60,
                setting.arguments().join(" ")
            );
        }
    }
    println!("together about {} minutes on an idle machine of two CPUs", total.div_ceil(60));
    for arm in arms::guests() {
        println!("{}: {} (in a guest: cargo xtask vm-sweep; brought in with --from)", arm.name, arm.question);
    }
}

fn choose(names: &[String]) -> Result<Vec<Arm>> {
    if names.is_empty() {
        return Ok(arms::all());
    }
    let known: Vec<Arm> = arms::all().into_iter().chain(arms::guests()).collect();
    let find = |name: &String| {
        let arm = known.iter().find(|arm| arm.name == name).cloned();
        arm.with_context(|| format!("no arm {name:?}; `cargo xtask study --list` names them"))
    };
    names.iter().map(find).collect()
}

/// The predictions, which must stand committed as they are: runs are judged by what was written before them.
fn committed_predictions() -> Result<Prereg> {
    let path = Path::new(RESULTS).join("PREREG.md");
    let mut git = Command::new("git");
    let clean = git.args(["diff", "--quiet", "HEAD", "--"]).arg(&path).status().context("cannot start git")?.success();
    let mut git = Command::new("git");
    let known =
        git.args(["ls-files", "--error-unmatch"]).arg(&path).output().context("cannot start git")?.status.success();
    ensure!(clean && known, "{} is not committed as it stands: commit it before the runs it judges", path.display());
    verify::read_prereg(&path)
}

fn kernel() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

/// The arm's folder: one that was begun, on whatever day, or a new one.
fn folder(out: &Path, arm: &Arm, kernel: &str) -> Result<PathBuf> {
    let ending = format!("-{kernel}-{}", arm.name);
    let begun = verify::folders(out).unwrap_or_default();
    let begun =
        begun.into_iter().find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&ending)));
    if let Some(begun) = begun {
        return Ok(begun);
    }
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let path = out.join(format!("{today}{ending}"));
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// `study.json` of an arm's folder.
struct Study {
    path: PathBuf,
    value: Value,
}

impl Study {
    /// # Errors
    /// It is there and was begun under other predictions.
    fn open(folder: &Path, arm: &Arm, command: &str, prereg: &str) -> Result<Self> {
        let path = folder.join(STUDY);
        if !path.exists() {
            let value = json!({"schema": 1, "arm": arm.name, "question": arm.question, "command": command,
                               "prereg_sha256": prereg, "settings": []});
            return Ok(Self { path, value });
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        ensure!(
            value["prereg_sha256"] == prereg,
            "{} was begun under other predictions than PREREG.md holds now; move its folder away to begin anew",
            path.display()
        );
        Ok(Self { path, value })
    }

    fn attempts(&self, setting: &str) -> Vec<Value> {
        let settings = self.value["settings"].as_array().map_or(&[][..], Vec::as_slice);
        let found = settings.iter().find(|found| found["name"] == setting);
        found.and_then(|found| found["attempts"].as_array().cloned()).unwrap_or_default()
    }

    fn is_kept(&self, setting: &str) -> bool {
        self.attempts(setting).last().is_some_and(|last| last["refused"] == json!([]))
    }

    /// Adds an attempt and writes the file.
    fn add(&mut self, setting: &str, command: &str, attempt: Value) -> Result<()> {
        let mut attempts = self.attempts(setting);
        attempts.push(attempt);
        let entry = json!({"name": setting, "command": command, "attempts": attempts});
        if let Some(settings) = self.value["settings"].as_array_mut() {
            settings.retain(|found| found["name"] != setting);
            settings.push(entry);
        }
        let text = serde_json::to_string_pretty(&self.value)? + "\n";
        fs::write(&self.path, text).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Runs a setting until a run of it counts.
fn one(study: &mut Study, place: &Place, arm: &Arm, setting: &Setting) -> Result<Ended> {
    let name = format!("{}/{}", arm.name, setting.name);
    let folder = place.folder.join(&setting.name);
    if study.is_kept(&setting.name) && folder.is_dir() {
        eprintln!("study: {name}: done before");
        return Ok(Ended::Kept);
    }
    for attempt in 1..=TRIES {
        attempt::move_aside(&folder, &format!("{}-{}", arm.name, setting.name))?;
        eprintln!("study: {name}: attempt {attempt}, about {} s", setting.expected().as_secs());
        let (ended, noted) = attempt::run(place, setting)?;
        if let Some(noted) = noted {
            study.add(&setting.name, &format!("throttle sweep {}", setting.arguments().join(" ")), noted.clone())?;
            for reason in noted["refused"].as_array().into_iter().flatten() {
                eprintln!("study: {name}: refused: {}", reason.as_str().unwrap_or_default());
            }
        }
        if ended != Ended::Refused {
            return Ok(ended);
        }
    }
    attempt::move_aside(&folder, &format!("{}-{}", arm.name, setting.name))?;
    eprintln!("study: {name}: no run of {TRIES} counts; run again when what is named above is mended");
    Ok(Ended::Refused)
}

/// Copies a guest's run into its arm's folder.
fn bring_in(arm: &Arm, from: &Path, out: &Path, prereg: &Prereg) -> Result<()> {
    let [setting] = arm.settings.as_slice() else { bail!("arm {} has several settings", arm.name) };
    let run = verify::Run::read(from)?;
    let mut refused = verify::refusals(&run, arm.name.starts_with("guest-"));
    refused.extend(verify::unplanned(prereg, arm.name, &setting.name, &run));
    ensure!(refused.is_empty(), "{} does not count: {}", from.display(), refused.join("; "));
    let kernel = run.head["environment"]["kernel"].as_str().context("run.json names no kernel")?;
    let folder = folder(out, arm, kernel)?;
    let command = format!(
        "cargo xtask vm-sweep --kernel {}-cloud --out DIR -- {}\ncargo xtask study --arm {} --from DIR",
        arm.name.trim_start_matches("guest-"),
        setting.arguments().join(" "),
        arm.name
    );
    let mut study = Study::open(&folder, arm, &command, &prereg.digest)?;
    let to = folder.join(&setting.name);
    attempt::move_aside(&to, &format!("{}-{}", arm.name, setting.name))?;
    attempt::copy(from, &to)?;
    attempt::compress(&to)?;
    let noted = json!({"seconds": null, "idle_before": null, "load_before": null, "foreign": null, "stolen": null, "refused": []});
    study.add(&setting.name, &format!("throttle sweep {}", setting.arguments().join(" ")), noted)?;
    if out == Path::new(RESULTS) {
        verify::write(out)?;
    }
    Ok(())
}
