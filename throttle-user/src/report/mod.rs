//! What people read: a file a format, all from the same summary.

pub mod markdown;
pub mod table;
