//! Kernels that do not exist, as far as the probe looks at them.

use throttle_user::{
    cgroup::Version,
    probe::{BtfError, KernelLayout, btf::resolve},
};

use crate::blob::{Blob, Member, Of};
use crate::fields::{FIELDS, INSIDE, inside};

/// A kernel of all fields that are required, and those named besides.
pub(crate) struct Kernel {
    pub(crate) structs: Vec<(&'static str, Vec<Member>)>,
    pub(crate) tracepoints: Vec<(&'static str, Vec<&'static str>)>,
}

impl Kernel {
    pub(crate) fn with(optional: &[&str]) -> Self {
        let paths = FIELDS.iter().filter(|(path, required)| *required || optional.contains(path));
        let mut structs: Vec<(&'static str, Vec<Member>)> = INSIDE.iter().map(|&(_, of)| (of, vec![])).collect();
        for (path, _) in paths.filter(|(path, _)| !path.ends_with(":bit")) {
            let mut names = path.split('.');
            let mut within = names.next().expect("a struct");
            for name in names {
                let position = structs.iter().position(|(of, _)| *of == within).unwrap_or(structs.len());
                if position == structs.len() {
                    structs.push((within, vec![]));
                }
                let members = &mut structs[position].1;
                if !members.iter().any(|(known, _)| *known == name) {
                    members.push((name, inside(name).map_or(Of::Word, Of::Struct)));
                }
                within = inside(name).unwrap_or("");
            }
        }
        Self { structs, tracepoints: vec![("sched_switch", vec!["", "task_struct", "task_struct", ""])] }
    }

    pub(crate) fn members(&mut self, of: &str) -> &mut Vec<Member> {
        &mut self.structs.iter_mut().find(|(name, _)| *name == of).expect("a struct of the list").1
    }

    pub(crate) fn write(&self, mut blob: Blob) -> Vec<u8> {
        for (name, members) in &self.structs {
            blob.structure(name, false, members);
        }
        for (name, arguments) in &self.tracepoints {
            blob.tracepoint(name, arguments);
        }
        blob.bytes()
    }

    pub(crate) fn resolve(&self) -> Result<KernelLayout, BtfError> {
        resolve(&self.write(Blob::new()), Version::V2)
    }
}
