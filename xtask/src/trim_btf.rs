//! `cargo xtask trim-btf`: a kernel's BTF cut down to some structs and typedefs, small enough to commit as a test's input.
//!
//! Owns the cutting. Knows the records' sizes and references (`include/uapi/linux/btf.h`) and nothing of what they mean; shares no
//! code with what reads BTF in the program, so that the two cannot be wrong together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// What to cut out of what.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// BTF of a whole kernel, as in /sys/kernel/btf/vmlinux.
    from: PathBuf,
    /// File to write.
    to: PathBuf,
    /// Structs and typedefs to keep, where the kernel has them, with all that lies inside them. Pointers to anything else become
    /// pointers to void.
    #[arg(required = true)]
    names: Vec<String>,
}

/// Reads, cuts, writes.
///
/// # Errors
/// A file cannot be read or written, or is not little-endian BTF.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { from, to, names } = options;
    let blob = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let trimmed = trim(&blob, names).with_context(|| format!("{} is not BTF of a kernel", from.display()))?;
    fs::write(to, &trimmed).with_context(|| format!("cannot write {}", to.display()))?;
    eprintln!("trim-btf: {} bytes of {} bytes", trimmed.len(), blob.len());
    Ok(())
}

const STRUCT: u32 = 4;
const TYPEDEF: u32 = 8;
const PTR: u32 = 2;
const HEADER: usize = 24;

/// One record: its words, the three of `struct btf_type` first.
struct Record {
    words: Vec<u32>,
}

impl Record {
    fn kind(&self) -> u32 {
        self.words[1] >> 24 & 0x1f
    }

    /// Words that are offsets of names.
    fn names(&self) -> Vec<usize> {
        let inner = match self.kind() {
            4 | 5 | 19 => 3,
            6 | 13 => 2,
            _ => return vec![0],
        };
        std::iter::once(0).chain((3..self.words.len()).step_by(inner)).collect()
    }

    /// Words that are ids of types.
    fn types(&self) -> Vec<usize> {
        match self.kind() {
            2 | 8..=12 | 14 | 17 | 18 => vec![2],
            3 => vec![3, 4],
            4 | 5 => (4..self.words.len()).step_by(3).collect(),
            13 => std::iter::once(2).chain((4..self.words.len()).step_by(2)).collect(),
            15 => (3..self.words.len()).step_by(3).collect(),
            _ => vec![],
        }
    }
}

/// Words behind the first three of a record.
fn tail(info: u32) -> Result<usize> {
    let entries = (info & 0xffff) as usize;
    Ok(match info >> 24 & 0x1f {
        1 | 14 | 17 => 1,
        3 => 3,
        4 | 5 | 15 | 19 => 3 * entries,
        6 | 13 => 2 * entries,
        2 | 7..=12 | 16 | 18 => 0,
        kind => bail!("a record is of kind {kind}, which this command does not know"),
    })
}

fn trim(blob: &[u8], names: &[String]) -> Result<Vec<u8>> {
    ensure!(blob.starts_with(&[0x9f, 0xeb, 1, 0]), "it does not begin as little-endian BTF of version 1 does");
    let header = words(blob.get(4..HEADER).context("its header is cut off")?);
    let section = |offset: u32, length: u32| {
        let start = header[0] as usize + offset as usize;
        blob.get(start..start + length as usize).context("a section is cut off")
    };
    let (records, strings) = (records(&words(section(header[1], header[2])?))?, section(header[3], header[4])?);
    let name = |offset: u32| {
        let rest = strings.get(offset as usize..).context("a name is out of range")?;
        Ok::<_, anyhow::Error>(rest.split(|&byte| byte == 0).next().unwrap_or_default())
    };
    let mut kept = BTreeSet::new();
    for (id, record) in (1..).zip(&records) {
        let wanted = names.iter().any(|wanted| name(record.words[0]).is_ok_and(|name| name == wanted.as_bytes()));
        if wanted && [STRUCT, TYPEDEF].contains(&record.kind()) {
            keep(&records, id, &mut kept)?;
        }
    }
    let ids: BTreeMap<u32, u32> = kept.iter().copied().zip(1..).collect();
    let (mut types, mut table, mut places) = (vec![], vec![0], HashMap::from([(&b""[..], 0)]));
    for &id in &kept {
        let record = &records[id as usize - 1];
        let mut words = record.words.clone();
        for at in record.names() {
            let name = name(words[at])?;
            let place = *places.entry(name).or_insert(table.len());
            if place == table.len() {
                table.extend_from_slice(name);
                table.push(0);
            }
            words[at] = u32::try_from(place)?;
        }
        for at in record.types() {
            words[at] = ids.get(&words[at]).copied().unwrap_or(0);
        }
        types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    let (types_len, table_len) = (u32::try_from(types.len())?, u32::try_from(table.len())?);
    let header = [24, 0, types_len, types_len, table_len];
    let header = header.iter().flat_map(|word| word.to_le_bytes());
    Ok(blob[..4].iter().copied().chain(header).chain(types).chain(table).collect())
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn records(mut words: &[u32]) -> Result<Vec<Record>> {
    let mut records = vec![];
    while let [_, info, _, ..] = *words {
        let (record, rest) = words.split_at_checked(3 + tail(info)?).context("its last record is cut off")?;
        records.push(Record { words: record.to_vec() });
        words = rest;
    }
    ensure!(words.is_empty(), "its last record is cut off");
    Ok(records)
}

/// Keeps a type and all that lies inside it. What only a pointer leads to is not kept, but that a tracepoint's typedef points to its
/// prototype.
fn keep(records: &[Record], root: u32, kept: &mut BTreeSet<u32>) -> Result<()> {
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if id == 0 || !kept.insert(id) {
            continue;
        }
        let record = records.get(id as usize - 1).with_context(|| format!("there is no type {id}"))?;
        let inner = record.types().into_iter().map(|at| record.words[at]);
        open.extend(inner.filter(|_| record.kind() != PTR));
        if id == root && record.kind() == TYPEDEF {
            let pointer =
                records.get((record.words[2] as usize).wrapping_sub(1)).filter(|pointed| pointed.kind() == PTR);
            open.extend(pointer.map(|pointer| pointer.words[2]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../throttle-user/tests/data/btf/6.18.btf");
        fs::read(path).expect("a committed blob")
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_is_trimmed_once_has_nothing_more_to_trim() {
        let kept = names(&["cfs_bandwidth", "btf_trace_sched_switch", "task_struct", "no_such_struct"]);
        let once = trim(&kernel(), &kept).expect("BTF");
        assert!(once.len() < kernel().len());
        assert_eq!(trim(&once, &kept).expect("still BTF"), once);
    }

    #[test]
    fn a_struct_takes_along_what_lies_inside_it_and_not_what_it_points_to() {
        let names_of = |kept: &[&str]| {
            let blob = trim(&kernel(), &names(kept)).expect("BTF");
            move |name: &str| blob.windows(name.len() + 2).any(|window| window == format!("\0{name}\0").as_bytes())
        };
        let entity = names_of(&["sched_entity"]);
        assert!(entity("sched_entity") && entity("rb_node") && entity("cfs_rq"), "the last as the name of a member");
        assert!(!entity("throttled_list"), "the queue is only pointed to");
        assert!(names_of(&["cfs_rq"])("throttled_list"));
    }

    #[test]
    fn what_is_not_btf_is_refused() {
        for blob in [&b""[..], b"\x9f\xeb\x01", &kernel()[..200], b"\x7fELF and more"] {
            trim(blob, &names(&["cfs_rq"])).expect_err("not whole");
        }
    }
}
