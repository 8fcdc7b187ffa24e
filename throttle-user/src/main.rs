//! The `throttle` binary: parse, then call one verb.

fn main() {}
