//! The page of a run in a real browser: what it shows is what the report says, and it can be used. Needs Chromium; pictures of
//! what was looked at are left in `target/browser`.

mod chromium;
mod figures;
mod made;
mod timeline;
mod use_of_it;
