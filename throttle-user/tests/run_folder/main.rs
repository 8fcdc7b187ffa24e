//! What is made of a run's folder, on any machine: reports and timelines, as processes. Needs no kernel.

mod made;
mod perfetto;
mod report;
mod svg;
mod terminal;
mod timeline;
mod tui;
