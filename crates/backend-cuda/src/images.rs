//! The compiled kernels inside the program, and which of them a device takes.
//!
//! `kernels/images.bin` is written by `cargo xtask cuda`: a table of names and lengths, and one compressed stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::{self, Context, Fault, Function, Module};

const IMAGES: &[u8] = include_bytes!("../kernels/images.bin");

/// What images are made for.
struct Architecture {
    name: &'static str,
    /// Whether a device of this compute capability takes them. Machine code serves its own generation alone, and that of
    /// 9.0a only 9.0; what the driver compiles serves every later one too.
    serves: fn((u32, u32)) -> bool,
}

/// The one that a device likes best first.
const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "sm_90a",
        serves: |c| c == (9, 0),
    },
    Architecture {
        name: "sm_80",
        serves: |c| c.0 == 8,
    },
    Architecture {
        name: "compute_80",
        serves: |c| c >= (8, 0),
    },
    Architecture {
        name: "compute_75",
        serves: |c| c >= (7, 5),
    },
];

/// The word in front of the compressed stream.
const MAGIC: &[u8; 8] = b"TOKCUDA1";

/// An image by the name of its source and of its architecture.
pub(crate) type Images = BTreeMap<(String, String), Vec<u8>>;

/// Takes the file apart: the digest of the sources, and the images. `None` where it is not such a file.
pub(crate) fn unpack(file: &[u8]) -> Option<([u8; 32], Images)> {
    let rest = file.strip_prefix(MAGIC)?;
    let (digest, rest) = rest.split_first_chunk::<32>()?;
    let all = miniz_oxide::inflate::decompress_to_vec_zlib(rest).ok()?;
    let (count, mut table) = all.split_first_chunk::<4>()?;
    let mut entries = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (len, rest) = table.split_first_chunk::<4>()?;
        let (name_len, rest) = rest.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*name_len) as usize)?;
        entries.push((
            str::from_utf8(name).ok()?,
            u32::from_le_bytes(*len) as usize,
        ));
        table = rest;
    }
    let mut images = Images::new();
    for (name, len) in entries {
        let (image, rest) = table.split_at_checked(len)?;
        let (source, arch) = name.split_once('.')?;
        images.insert((source.to_owned(), arch.to_owned()), image.to_vec());
        table = rest;
    }
    Some((*digest, images))
}

/// The kernels of a device, each image loaded when the first of its kernels is asked for.
pub(crate) struct Kernels {
    context: Arc<Context>,
    architecture: &'static str,
    images: Images,
    loaded: Mutex<BTreeMap<&'static str, Module>>,
}

impl Kernels {
    /// Whether kernels use tensor cores in the shapes that 8.0 brought.
    pub(crate) fn has_tensor_cores(&self) -> bool {
        self.architecture != "compute_75"
    }

    /// Whether kernels that know how to may begin before the one before them ends.
    pub(crate) fn begins_early(&self) -> bool {
        self.architecture == "sm_90a" && driver::begins_early()
    }

    /// Whether there are tapes whose blocks hand numbers on in words.
    pub(crate) fn has_words(&self) -> bool {
        self.architecture == "sm_90a"
    }

    /// Those that a context's device can run; `None` when it is too old.
    pub(crate) fn new(context: &Arc<Context>, wanted: Option<&str>) -> Result<Option<Self>, Fault> {
        let capability = context.capability()?;
        let takes =
            |a: &&Architecture| (a.serves)(capability) && wanted.is_none_or(|w| w == a.name);
        let Some(found) = ARCHITECTURES.iter().find(takes) else {
            return Ok(None);
        };
        let (_, images) = unpack(IMAGES).expect("the images were packed by this project");
        Ok(Some(Kernels {
            context: Arc::clone(context),
            architecture: found.name,
            images,
            loaded: Mutex::default(),
        }))
    }

    /// Takes the images of another file; `None` where it is not such a file.
    pub(crate) fn replace(&mut self, file: &[u8]) -> Option<()> {
        (_, self.images) = unpack(file)?;
        Some(())
    }

    /// The architecture whose images are used.
    pub(crate) fn architecture(&self) -> &'static str {
        self.architecture
    }

    pub(crate) fn function(&self, source: &'static str, name: &str) -> Result<Function, Fault> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if !loaded.contains_key(source) {
            let key = (source.to_owned(), self.architecture.to_owned());
            let image = self.images.get(&key).expect("every source has its image");
            loaded.insert(source, Module::new(&self.context, image)?);
        }
        loaded[source].function(name)
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// What the images were made from, in the order of names.
    fn sources() -> Vec<(String, Vec<u8>)> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let files = std::fs::read_dir(root)
            .expect("a folder")
            .map(|e| e.expect("an entry").path());
        let mut sources: Vec<(String, Vec<u8>)> = files
            .filter(|p| {
                p.extension()
                    .is_some_and(|e| e == "cu" || e == "cuh" || e == "py")
            })
            .map(|p| {
                let name = p
                    .file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned();
                (name, std::fs::read(p).expect("a file"))
            })
            .collect();
        sources.sort();
        sources
    }

    #[test]
    fn images_are_those_of_the_sources() {
        let (digest, images) = unpack(IMAGES).expect("images");
        let mut hash = Sha256::new();
        for (name, text) in sources() {
            hash.update(name.as_bytes());
            hash.update(text);
        }
        let made: [u8; 32] = hash.finalize().into();
        assert_eq!(made, digest, "run `cargo xtask cuda`: the kernels changed");
        for arch in ARCHITECTURES {
            let found = images.keys().filter(|k| k.1 == arch.name).count();
            assert_eq!(found, images.len() / ARCHITECTURES.len(), "{}", arch.name);
        }
    }

    #[test]
    fn what_is_no_file_of_images_is_nothing() {
        assert!(unpack(b"TOKCUDA1").is_none());
        assert!(unpack(&IMAGES[..IMAGES.len() / 2]).is_none());
        assert!(unpack(&IMAGES[1..]).is_none());
    }
}
