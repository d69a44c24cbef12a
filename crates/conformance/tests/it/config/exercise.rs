//! Settings of `config.json` beside the tensors of a golden: read, resolved, built and loaded. The fuzz target uses
//! this file too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokkata_archs::Registry;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::golden::Golden;
use tokkata_conformance::hf::HfGolden;
use tokkata_conformance::models::{Feeding, load};
use tokkata_formats::ModelFile;

/// Positions that a model is loaded for.
const POSITIONS: usize = 8;

/// Directories of every golden, written when they are first asked for.
pub(crate) struct Checkpoints {
    root: tempfile::TempDir,
    registry: Registry,
    /// The settings of each golden.
    pub(crate) configs: BTreeMap<String, serde_json::Value>,
}

impl Checkpoints {
    pub(crate) fn new() -> Self {
        let names = Golden::list(&HfGolden::folder()).expect("goldens");
        let config = |name: String| {
            let golden = HfGolden::read(&HfGolden::folder(), &name).expect("a golden");
            (name, golden.config)
        };
        Checkpoints {
            root: tempfile::tempdir().expect("a folder"),
            registry: Registry::builtin(),
            configs: names.into_iter().map(config).collect(),
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.root.path().join(name);
        if !folder.exists() {
            std::fs::create_dir(&folder).expect("a folder");
            let golden = HfGolden::read(&HfGolden::folder(), name).expect("a golden");
            golden.write_directory(&folder).expect("a directory");
        }
        folder
    }

    /// The name of a golden and settings, cut apart at a zero byte. Says whether they made a model.
    pub(crate) fn exercise(&self, input: &[u8]) -> bool {
        let Some((name, config)) = parts(input) else {
            return false;
        };
        if !self.configs.contains_key(name) {
            return false;
        }
        let folder = self.folder(name);
        std::fs::write(folder.join("config.json"), config).expect("a file");
        match self.load(&folder) {
            Ok(()) => true,
            Err(text) => {
                assert!(!text.contains('\n'), "{text}");
                false
            }
        }
    }

    fn load(&self, folder: &Path) -> Result<(), String> {
        let file = ModelFile::open(folder).map_err(|e| e.to_string())?;
        let backend = RefBackend::default();
        load(&file, &self.registry, &backend, POSITIONS, Feeding::WHOLE).map(drop)
    }
}

/// The name and the settings of an input.
pub(crate) fn parts(input: &[u8]) -> Option<(&str, &[u8])> {
    let cut = input.iter().position(|&b| b == 0)?;
    Some((std::str::from_utf8(&input[..cut]).ok()?, &input[cut + 1..]))
}
