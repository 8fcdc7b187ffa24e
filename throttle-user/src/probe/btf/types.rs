//! Structs and tracepoints by name in a BTF blob.
//!
//! Owns every walk along type ids. A blob is input like any other: whatever its bytes, a walk ends and its result or error is typed.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use btfparse::{ErrorKind, Offset, Readable, Struct, TypeInformation, TypeVariant, Typedef};

/// Why a walk did not arrive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The blob is sound and does not have it: what it lacks, in words.
    Absent(String),
    /// The blob is not sound: in which way.
    Malformed(String),
}

/// Where a member lies in the struct that a path begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Byte that holds its lowest bit.
    pub(super) byte: u32,
    /// Bit of that byte. Little-endian: 0 for anything but a bitfield.
    pub(super) bit: u32,
}

/// Reads all types of a blob.
///
/// # Errors
/// Why it is not BTF of a little-endian kernel, in words.
pub(super) fn parse(blob: &[u8]) -> Result<TypeInformation, String> {
    // `struct btf_header`: magic, version, flags. In the byte order of the machine that wrote it.
    match blob {
        [0x9f, 0xeb, 1, ..] => {}
        [0x9f, 0xeb, version, ..] => return Err(format!("its version is {version}, and only 1 is known")),
        [0xeb, 0x9f, ..] => return Err("it is of a big-endian kernel".to_owned()),
        _ => return Err("it does not begin with BTF's magic number".to_owned()),
    }
    TypeInformation::new(&Budgeted::new(blob)).map_err(|error| error.message().to_owned())
}

/// A blob that refuses to be read many times over. The parser copies a name each time that it is referred to: with every member
/// of a large blob naming one long string, that would not end. A kernel's own blob is read 1.1 times.
struct Budgeted<'a> {
    blob: &'a [u8],
    left: Cell<usize>,
}

impl<'a> Budgeted<'a> {
    fn new(blob: &'a [u8]) -> Self {
        Self { blob, left: Cell::new(blob.len().saturating_mul(16)) }
    }
}

impl Readable for Budgeted<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let refused = |message: &str| btfparse::Error::new(ErrorKind::EOF, message);
        let left = self.left.get().checked_sub(buffer.len());
        self.left.set(left.ok_or_else(|| refused("its names are referred to more often than a kernel would"))?);
        let rest = usize::try_from(offset).ok().and_then(|offset| self.blob.get(offset..));
        let bytes = rest.and_then(|rest| rest.get(..buffer.len())).ok_or_else(|| refused("it ends too early"))?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// The types of a blob, with its structs and typedefs by name.
pub(super) struct Types<'a> {
    all: &'a BTreeMap<u32, TypeVariant>,
    structs: HashMap<&'a str, &'a Struct>,
    typedefs: HashMap<&'a str, &'a Typedef>,
}

impl<'a> Types<'a> {
    /// Indexes what [`parse`] read. Of several definitions of a name the first counts, as in libbpf (`btf_find_by_name_kind`);
    /// forward declarations are another kind and never stand in for a definition.
    pub(super) fn new(parsed: &'a TypeInformation) -> Self {
        let (mut structs, mut typedefs) = (HashMap::new(), HashMap::new());
        for found in parsed.get().values() {
            match found {
                TypeVariant::Struct(found) => {
                    found.name().as_deref().map(|name| structs.entry(name).or_insert(found));
                }
                TypeVariant::Typedef(found) => {
                    found.name().as_deref().map(|name| typedefs.entry(name).or_insert(found));
                }
                _ => {}
            }
        }
        Self { all: parsed.get(), structs, typedefs }
    }

    /// Finds `struct.member[.member…]`, through anonymous members, typedefs and qualifiers, never through a pointer.
    pub(super) fn find(&self, path: &str) -> Result<Place, Lost> {
        let mut names = path.split('.');
        let outermost = names.next().unwrap_or_default();
        let whole = *self.structs.get(outermost).ok_or_else(|| Lost::Absent(format!("struct {outermost}")))?;
        let mut members = Some((whole.member_list(), format!("struct {outermost}")));
        let mut bits = 0;
        for name in names {
            let (list, owner) = members.ok_or_else(|| malformed(path, "a member is not a struct"))?;
            let (bit, type_id) =
                self.member(list, name)?.ok_or_else(|| Lost::Absent(format!("field {name} in {owner}")))?;
            bits += bit;
            members = match self.bare(type_id)? {
                Some(TypeVariant::Struct(inner)) => {
                    Some((inner.member_list(), format!("struct {}", inner.name().as_deref().unwrap_or(name))))
                }
                Some(TypeVariant::Union(inner)) => {
                    Some((inner.member_list(), format!("union {}", inner.name().as_deref().unwrap_or(name))))
                }
                _ => None,
            };
        }
        match u32::try_from(bits / 8) {
            Ok(byte) if (byte as usize) < *whole.size() => Ok(Place { byte, bit: (bits % 8) as u32 }),
            _ => Err(malformed(path, "it lies outside of its struct")),
        }
    }

    /// A member by name: its distance from the start in bits, and its type. Also inside anonymous structs and unions, of which
    /// each type is looked into once: that ends on any blob, and two of one type would have members of one name.
    fn member(&self, list: &'a [btfparse::Member], name: &str) -> Result<Option<(u64, u32)>, Lost> {
        let mut seen = BTreeSet::new();
        let mut open = vec![(0, list)];
        while let Some((start, list)) = open.pop() {
            for member in list {
                let bit = start + bits(member.offset());
                match member.name() {
                    Some(own) if own == name => return Ok(Some((bit, member.tid()))),
                    Some(_) => {}
                    None if seen.insert(member.tid()) => match self.bare(member.tid())? {
                        Some(TypeVariant::Struct(inner)) => open.push((bit, inner.member_list())),
                        Some(TypeVariant::Union(inner)) => open.push((bit, inner.member_list())),
                        // An unnamed bitfield only fills space.
                        _ => {}
                    },
                    None => {}
                }
            }
        }
        Ok(None)
    }

    /// A type without typedefs, qualifiers and tags around it. None: void.
    fn bare(&self, type_id: u32) -> Result<Option<&'a TypeVariant>, Lost> {
        let mut id = type_id;
        // A chain without a circle has each type once.
        for _ in 0..=self.all.len() {
            if id == 0 {
                return Ok(None);
            }
            let found = self.all.get(&id).ok_or_else(|| Lost::Malformed(format!("there is no type {id}")))?;
            id = match found {
                TypeVariant::Typedef(inner) => *inner.tid(),
                TypeVariant::Const(inner) => *inner.tid(),
                TypeVariant::Volatile(inner) => *inner.tid(),
                TypeVariant::Restrict(inner) => *inner.tid(),
                TypeVariant::TypeTag(inner) => *inner.tid(),
                _ => return Ok(Some(found)),
            };
        }
        Err(Lost::Malformed(format!("type {type_id} is defined in a circle")))
    }

    /// What a type points to. None: it is no pointer, or one to void.
    fn pointee(&self, type_id: u32) -> Result<Option<&'a TypeVariant>, Lost> {
        match self.bare(type_id)? {
            Some(TypeVariant::Ptr(pointer)) => self.bare(*pointer.tid()),
            _ => Ok(None),
        }
    }

    /// Arguments of a tracepoint, each with the name of the struct it points to, if any. From
    /// `typedef void (*btf_trace_<name>)(void *, …)` (`include/trace/bpf_probe.h`), without the `void *`.
    pub(super) fn tracepoint(&self, name: &str) -> Result<Vec<Option<&'a str>>, Lost> {
        let typedef = self.typedefs.get(format!("btf_trace_{name}").as_str());
        let typedef = typedef.ok_or_else(|| Lost::Absent(format!("tracepoint {name}")))?;
        let Some(TypeVariant::FuncProto(prototype)) = self.pointee(*typedef.tid())? else {
            return Err(malformed(name, "the tracepoint is not a function"));
        };
        let arguments = prototype.parameter_list().iter().skip(1);
        arguments
            .map(|argument| {
                Ok(match self.pointee(argument.tid())? {
                    Some(TypeVariant::Struct(pointee)) => pointee.name().as_deref(),
                    _ => None,
                })
            })
            .collect()
    }
}

fn malformed(object: &str, what: &str) -> Lost {
    Lost::Malformed(format!("{object}: {what}"))
}

/// Distance from the start of the struct. With the struct's `kind_flag` the upper byte of the stored word is a bitfield's size
/// (`include/uapi/linux/btf.h`, `BTF_MEMBER_BIT_OFFSET`); the parser has taken it off.
fn bits(offset: Offset) -> u64 {
    match offset {
        Offset::ByteOffset(bytes) => u64::from(bytes) * 8,
        Offset::BitOffsetAndSize(bits, _) => u64::from(bits),
    }
}
