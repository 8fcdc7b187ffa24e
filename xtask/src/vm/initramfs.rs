//! The guest's root: a cpio archive in the kernel's "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive in the making. Folders come before what is in them.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// Adds a folder.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds the folders above `path` and an executable file there.
    pub(crate) fn program(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_start_matches('/');
        for (slash, _) in path.match_indices('/') {
            self.folder(&path[..slash]);
        }
        self.entry(path, PROGRAM, content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK, target.as_bytes());
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = content.len();
        // inode, mode, uid, gid, links, mtime, size, device and special device (major, minor each), name with NUL, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0];
        let head: String = fields.iter().map(|field| format!("{field:08X}")).collect();
        let tail = format!("{size:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}", 0, 0, 0, 0, path.len() + 1, 0);
        self.bytes.extend_from_slice(format!("070701{head}{tail}{path}\0").as_bytes());
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_a_name_and_a_content_each_padded_to_four_bytes() {
        let mut archive = Archive::default();
        archive.program("/init", b"hello");
        let bytes = archive.finish();
        let header = [
            "070701", "00000001", "000081ED", "00000000", "00000000", "00000001", "00000000", "00000005", "00000000",
            "00000000", "00000000", "00000000", "00000005", "00000000", "init\0",
        ];
        assert_eq!(&bytes[..115], header.concat().as_bytes());
        assert_eq!(&bytes[115..124], b"\0hello\0\0\0");
        assert!(bytes.len().is_multiple_of(4));
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn a_program_brings_the_folders_above_it() {
        let mut archive = Archive::default();
        archive.program("/a/b/c", b"");
        let text = String::from_utf8(archive.finish()).expect("all of it is text");
        let at = |path: &str| text.find(&format!("{path}\0")).expect("an entry");
        assert!(at("00000000a") < at("00000000a/b") && at("00000000a/b") < at("00000000a/b/c"));
    }
}
