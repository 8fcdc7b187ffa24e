//! Writes BTF of kernels that do not exist: for what no kernel at hand shows.

/// Type of a member.
#[derive(Clone)]
pub(crate) enum Of {
    /// 64 bits of anything.
    Word,
    /// A struct written before.
    Struct(&'static str),
    /// A struct or union without a name.
    Anonymous { union: bool, members: Vec<Member> },
    /// A word of flags of one bit each; the first has no name where it is empty.
    Flags(Vec<&'static str>),
    /// A type by its number, 64 bits long.
    Id(u32),
}

/// Name and type.
pub(crate) type Member = (&'static str, Of);

/// Members of one word each.
pub(crate) fn words(names: &[&'static str]) -> Vec<Member> {
    names.iter().map(|&name| (name, Of::Word)).collect()
}

/// `include/uapi/linux/btf.h`, `BTF_KIND_*`.
pub(crate) mod kind {
    pub(crate) const INT: u32 = 1;
    pub(crate) const PTR: u32 = 2;
    pub(crate) const STRUCT: u32 = 4;
    pub(crate) const UNION: u32 = 5;
    pub(crate) const FWD: u32 = 7;
    pub(crate) const TYPEDEF: u32 = 8;
    pub(crate) const CONST: u32 = 10;
    pub(crate) const FUNC_PROTO: u32 = 13;
}

/// `kind_flag`, with which offsets carry the size of a bitfield.
pub(crate) const KIND_FLAG: u32 = 1 << 31;

/// A blob in the making.
pub(crate) struct Blob {
    types: Vec<u32>,
    count: u32,
    pub(crate) strings: Vec<u8>,
    structs: Vec<(&'static str, u32, u32)>,
}

/// Number of the type that [`Of::Word`] is: the first of every blob.
pub(crate) const WORD: u32 = 1;

impl Blob {
    pub(crate) fn new() -> Self {
        let mut blob = Self { types: vec![], count: 0, strings: vec![0], structs: vec![] };
        blob.record("word", kind::INT, 8, &[64]);
        blob
    }

    /// Offset of a name, empty for none.
    pub(crate) fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let offset = self.strings.len();
        self.strings.extend(name.bytes().chain([0]));
        u32::try_from(offset).expect("short")
    }

    /// Writes a record; `kind` is with its flag and count, `tail` what follows the first three words. Returns its number.
    pub(crate) fn record(&mut self, name: &str, kind: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.name(name);
        let info = kind & KIND_FLAG | (kind & 0x1f) << 24 | kind >> 8 & 0xffff;
        self.types.extend([name, info, size_or_type].iter().chain(tail));
        self.count += 1;
        self.count
    }

    /// Number that the next record will have.
    pub(crate) fn next(&self) -> u32 {
        self.count + 1
    }

    /// Writes a struct, its members one behind the other, or a union. Returns its number.
    pub(crate) fn structure(&mut self, name: &'static str, union: bool, members: &[Member]) -> u32 {
        let flags = members.iter().any(|(_, of)| matches!(of, Of::Flags(_)));
        let (mut tail, mut at, mut size) = (vec![], 0, 0);
        for (name, of) in members {
            let (id, bits) = match of {
                Of::Word | Of::Flags(_) => (WORD, 64),
                Of::Id(id) => (*id, 64),
                Of::Struct(of) => self.structs.iter().find(|(name, ..)| name == of).map_or((0, 0), |s| (s.1, s.2)),
                Of::Anonymous { union, members } => {
                    let id = self.structure("", *union, members);
                    (id, self.structs.last().expect("just written").2)
                }
            };
            if let Of::Flags(names) = of {
                for (bit, name) in (0..).zip(names) {
                    tail.extend([self.name(name), id, 1 << 24 | (at + bit)]);
                }
            } else {
                tail.extend([self.name(name), id, at]);
            }
            size = size.max(at + bits);
            at = if union { 0 } else { at + bits };
        }
        let count = u32::try_from(tail.len() / 3).expect("few members");
        let kind = if union { kind::UNION } else { kind::STRUCT };
        let id = self.record(name, kind | count << 8 | if flags { KIND_FLAG } else { 0 }, size / 8, &tail);
        self.structs.push((name, id, size));
        id
    }

    /// Writes `typedef void (*btf_trace_<name>)(void *, …)`; `arguments` name the struct pointed to, or are empty for a word.
    pub(crate) fn tracepoint(&mut self, name: &str, arguments: &[&str]) {
        let mut tail = vec![0, self.record("", kind::PTR, 0, &[])];
        for argument in arguments {
            let pointee = self.structs.iter().find(|(name, ..)| name == argument).map(|found| found.1);
            let id = pointee.map_or(WORD, |pointee| {
                let qualified = self.record("", kind::CONST, pointee, &[]);
                self.record("", kind::PTR, qualified, &[])
            });
            tail.extend([0, id]);
        }
        let count = u32::try_from(tail.len() / 2).expect("few arguments");
        let prototype = self.record("", kind::FUNC_PROTO | count << 8, 0, &tail);
        let pointer = self.record("", kind::PTR, prototype, &[]);
        self.record(&format!("btf_trace_{name}"), kind::TYPEDEF, pointer, &[]);
    }

    /// The blob.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = |bytes: usize| u32::try_from(bytes).expect("a small blob");
        let (types, strings) = (length(4 * self.types.len()), length(self.strings.len()));
        let words = [24, 0, types, types, strings].into_iter().chain(self.types.iter().copied());
        let words = words.flat_map(u32::to_le_bytes);
        [0x9f, 0xeb, 1, 0].into_iter().chain(words).chain(self.strings.iter().copied()).collect()
    }
}
