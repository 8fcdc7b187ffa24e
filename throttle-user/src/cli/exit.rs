//! How a verb ends: the exit codes, and the failures that lead to them.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::Signal;

/// The exit codes, a contract with scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: done, but something is not right: requests failed, counters disagree, events were lost.
    NotRight,
    /// 2: bad usage or bad input.
    BadInput,
    /// 2, of `check` alone: nothing can be observed on this machine.
    CannotObserve,
    /// 3: this machine cannot do it: a privilege, a kernel feature or a controller is missing.
    CannotRun,
    /// 4: broke off midway; what was measured is kept.
    BrokeOff,
    /// 130: interrupted; what was measured is kept.
    Interrupted,
    /// The code of a command that was run for the user.
    Command(u8),
}

impl Exit {
    /// The number a shell sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotRight => 1,
            Self::BadInput | Self::CannotObserve => 2,
            Self::CannotRun => 3,
            Self::BrokeOff => 4,
            Self::Interrupted => 130,
            Self::Command(code) => code,
        }
    }
}

/// Why a verb did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// To be told on stderr.
    Told {
        /// The code to end with.
        exit: Exit,
        /// What to tell, causes included.
        error: anyhow::Error,
    },
    /// Whoever read stdout has gone (`throttle … | head`): nothing to tell, and nobody to tell it to.
    StdoutClosed,
}

impl Failure {
    /// What to tell, in one line.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Told { exit: _, error } => told(error),
            Self::StdoutClosed => "stdout is closed".to_owned(),
        }
    }
}

/// What a verb returns.
pub type Verdict = Result<Exit, Failure>;

/// Says which exit code an error leads to. There is no conversion without saying it.
pub trait OrExit<T> {
    /// Turns an error into a [`Failure`] that ends with `exit`.
    ///
    /// # Errors
    /// The failure, where there was an error.
    fn or_exit(self, exit: Exit) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, Failure> {
        self.map_err(|error| Failure::Told { exit, error: error.into() })
    }
}

/// Writes to stdout, and flushes, so that rows are there when they are written.
pub(super) fn print(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_fmt(text).and_then(|()| stdout.flush()).map_err(|cause| match cause.kind() {
        ErrorKind::BrokenPipe => Failure::StdoutClosed,
        _ => Failure::Told { exit: Exit::BrokeOff, error: anyhow::Error::new(cause).context("cannot write to stdout") },
    })
}

/// The same of text with colours, which only a terminal gets; `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are respected.
pub(super) fn print_styled(text: &str) -> Result<(), Failure> {
    let plain = anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never;
    if plain { print(format_args!("{}", anstream::adapter::strip_str(text))) } else { print(format_args!("{text}")) }
}

/// Writes a line to stderr; where that is closed there is nobody to tell.
pub(super) fn tell(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Tells how a verb ended and turns it into the process's exit code.
pub(super) fn conclude(verdict: Verdict) -> ExitCode {
    let exit = match verdict {
        Ok(exit) => exit,
        Err(Failure::StdoutClosed) => Exit::Done,
        Err(Failure::Told { exit, error }) => {
            let text = told(&error);
            tell(format_args!("throttle: {text}{}", remedy(&text)));
            exit
        }
    };
    ExitCode::from(exit.code())
}

/// An error and its causes in one line. The library's errors print their cause themselves, so a cause that stands in
/// the text already is not said again.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut text, cause| {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
        text
    })
}

/// What to do about a limit of the process that may strike anywhere, by the text of the system's error.
fn remedy(text: &str) -> &'static str {
    let is = |errno: Errno| text.contains(&format!("(os error {})", errno as i32));
    if text.contains("ulimit") {
        ""
    } else if is(Errno::EMFILE) {
        "; raise this process's limit on open files (ulimit -n): 64 are enough for most runs"
    } else if is(Errno::ENFILE) {
        "; the whole machine's limit on open files is reached (sysctl fs.file-max)"
    } else {
        ""
    }
}

/// Whether an error is the limit on open files, of this process or of the machine.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| code == Errno::EMFILE as i32 || code == Errno::ENFILE as i32)
}

/// Lets a write beyond the limit on file sizes (`ulimit -f`) fail with EFBIG, which is then told as any full disk is: the
/// signal for it would end the process on the spot. Not ignored but caught, so that commands started for the user have the
/// signal as it was.
pub(super) fn outlive_large_files() {
    // Refused only for signals that cannot be caught, which this one can.
    let _ = signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_the_text_names_already_is_told_once() {
        let error = anyhow::Error::new(io::Error::other("disk full")).context("cannot write a.hlog: disk full");
        assert_eq!(told(&error), "cannot write a.hlog: disk full");
        let error = anyhow::Error::new(io::Error::other("disk full")).context("cannot write a.hlog");
        assert_eq!(told(&error), "cannot write a.hlog: disk full");
    }

    #[test]
    fn running_out_of_open_files_names_the_limit() {
        let error =
            anyhow::Error::new(io::Error::from_raw_os_error(Errno::EMFILE as i32)).context("cannot make a pipe");
        assert!(remedy(&told(&error)).contains("ulimit -n"));
        assert_eq!(remedy("timerfd: Too many open files (os error 24). Check (ulimit -n)"), "");
        assert_eq!(remedy("cannot read x: No such file or directory (os error 2)"), "");
    }

    #[test]
    fn an_error_ends_with_the_code_it_was_given() {
        let failed: Result<(), _> = Err::<(), _>(io::Error::other("x")).or_exit(Exit::CannotRun);
        assert!(matches!(failed, Err(Failure::Told { exit: Exit::CannotRun, .. })));
    }
}
