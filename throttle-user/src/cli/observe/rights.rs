//! Rights that the daemon gives up once it observes. Capabilities are a thread's own, so each thread gives up its own: the two that are
//! there before the probe is attached as they begin their work, the main one afterwards, for all that it starts from then on.

use crate::{
    cli::exit::tell,
    probe::{
        Observer,
        observer::Seen,
        rights::{self, Kept, RightsError},
    },
};

/// The calling thread needs no right.
pub(super) fn none() {
    if let Err(error) = rights::give_up(Kept::Nothing) {
        let thread = std::thread::current();
        tell(format_args!("throttle observe: thread {}: {error}", thread.name().unwrap_or("?")));
    }
}

/// The same for the thread that `sink` is called on.
pub(super) fn without(mut sink: impl FnMut(Seen) + Send + 'static) -> impl FnMut(Seen) + Send + 'static {
    let mut is_first = true;
    move |seen| {
        if std::mem::take(&mut is_first) {
            none();
        }
        sink(seen);
    }
}

/// The main thread gives up all that reading the observer's maps does not take; says what it keeps.
///
/// # Errors
/// [`RightsError`].
pub(super) fn give_up(observer: &Observer) -> Result<Option<String>, RightsError> {
    let (kept, said) = if observer.reads_without_rights() {
        (Kept::Nothing, None)
    } else {
        let said = "CAP_BPF is kept: this kernel asks for it each time a map is read";
        (Kept::Bpf, Some(said.to_owned()))
    };
    rights::give_up(kept)?;
    Ok(said)
}
