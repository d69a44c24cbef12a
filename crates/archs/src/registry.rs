//! The known descriptors: those built in and those added at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tokkata_formats::ModelFile;
use tokkata_ir::ModelSpec;

use crate::beside::{Guest, Trunk, guest_of};
use crate::error::ArchError;
use crate::hf::HfView;
use crate::resolve::{ResolveOptions, resolve, resolve_guest};
use crate::schema::Descriptor;
use crate::view::{GgufView, View};

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// Descriptors by architecture string.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    by_name: BTreeMap<String, usize>,
    descriptors: Vec<Descriptor>,
    sources: BTreeMap<String, toml::Table>,
}

impl Registry {
    /// The descriptors that ship with Tokkata.
    ///
    /// # Panics
    /// When one is broken, which the tests rule out.
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Registry::default();
        for (stem, text) in BUILTIN {
            let table = text
                .parse()
                .unwrap_or_else(|e| panic!("built-in descriptor {stem}: {e}"));
            registry.sources.insert((*stem).to_owned(), table);
        }
        for (stem, text) in BUILTIN {
            registry
                .add_text(&format!("{stem}.toml"), text)
                .unwrap_or_else(|e| panic!("built-in descriptor: {e}"));
        }
        registry
    }

    /// Adds a descriptor from a file; it replaces built-in ones of the same names.
    ///
    /// # Errors
    /// [`ArchError::Descriptor`] with the line of the mistake.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ArchError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| ArchError::Descriptor {
            file: file.clone(),
            what: format!("cannot be read: {e}"),
        })?;
        self.add_text(&file, &text)
    }

    /// Adds a descriptor from its text; `file` names it in messages.
    ///
    /// # Errors
    /// [`ArchError::Descriptor`] with the line of the mistake.
    pub fn add_text(&mut self, file: &str, text: &str) -> Result<(), ArchError> {
        let descriptor = self.parse(file, text)?;
        if let (Some(stem), Ok(table)) = (Path::new(file).file_stem(), text.parse::<toml::Table>())
        {
            self.sources
                .insert(stem.to_string_lossy().into_owned(), table);
        }
        for name in &descriptor.names {
            self.by_name.insert(name.clone(), self.descriptors.len());
        }
        self.descriptors.push(descriptor);
        Ok(())
    }

    /// Reads a descriptor without adding it.
    ///
    /// # Errors
    /// [`ArchError::Descriptor`] with the line of the mistake.
    pub fn parse(&self, file: &str, text: &str) -> Result<Descriptor, ArchError> {
        let mistake = |what: String| ArchError::Descriptor {
            file: file.to_owned(),
            what,
        };
        // The text alone first: its errors carry lines, those of a merged table cannot.
        let alone: Descriptor = toml::from_str(text).map_err(|e| mistake(e.to_string()))?;
        if alone.names.is_empty() {
            return Err(mistake(
                "names is empty: list the architecture strings of the family".to_owned(),
            ));
        }
        let Some(base) = &alone.extends else {
            return Ok(alone);
        };
        let base_table = self
            .sources
            .get(base)
            .ok_or_else(|| mistake(format!("extends = \"{base}\" is not known")))?;
        if base_table.contains_key("extends") {
            return Err(mistake(format!(
                "extends = \"{base}\", which itself extends another; one level only"
            )));
        }
        let own: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| mistake(e.to_string()))?;
        let mut merged = base_table.clone();
        // What belongs to one family only.
        for key in ["names", "about"] {
            merged.remove(key);
        }
        match merged.get_mut("hf").and_then(toml::Value::as_table_mut) {
            Some(hf) if own.contains_key("hf") => {
                ["classes", "when", "arch"].iter().for_each(|key| {
                    hf.remove(*key);
                });
            }
            _ => {
                merged.remove("hf");
            }
        }
        merge(&mut merged, own);
        toml::Value::Table(merged)
            .try_into()
            .map_err(|e: toml::de::Error| mistake(e.to_string()))
    }

    /// The descriptor of an architecture string.
    #[must_use]
    pub fn get(&self, arch: &str) -> Option<&Descriptor> {
        self.by_name.get(arch).map(|&i| &self.descriptors[i])
    }

    /// Every architecture string, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Resolves a file through its descriptor.
    ///
    /// # Errors
    /// [`ArchError`] names what is missing, misshapen or left over.
    pub fn resolve(
        &self,
        file: &ModelFile,
        options: &ResolveOptions,
    ) -> Result<ModelSpec, ArchError> {
        let plain = GgufView(file);
        match file.directory() {
            Some(_) => self.resolve_both(&HfView::new(self, file)?, &plain, options),
            None => self.resolve_view(&plain, options),
        }
    }

    /// Every descriptor, those added last first.
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        self.descriptors.iter().rev()
    }

    /// The metadata keys that a file's descriptor asks for.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub fn keys_read(
        &self,
        file: &ModelFile,
        options: &ResolveOptions,
    ) -> Result<BTreeSet<String>, ArchError> {
        let view = GgufView(file);
        crate::resolve::keys_read(self.descriptor(&view)?, &view, options)
    }

    /// Resolves any view of a file through its descriptor.
    ///
    /// # Errors
    /// [`ArchError`] names what is missing, misshapen or left over.
    pub fn resolve_view(
        &self,
        view: &dyn View,
        options: &ResolveOptions,
    ) -> Result<ModelSpec, ArchError> {
        self.resolve_both(view, view, options)
    }

    /// The model of a view, with the drafter that another one has beside it.
    fn resolve_both(
        &self,
        view: &dyn View,
        beside: &dyn View,
        options: &ResolveOptions,
    ) -> Result<ModelSpec, ArchError> {
        let descriptor = self.descriptor(view)?;
        if guest_of(beside.metadata()).is_none() {
            return resolve(descriptor, view, options);
        }
        let spec = resolve(descriptor, &Trunk(view), options)?;
        let guest = Guest::new(beside);
        resolve_guest(self.descriptor(&guest)?, &guest, options, spec)
    }

    fn descriptor(&self, view: &dyn View) -> Result<&Descriptor, ArchError> {
        let arch = view
            .metadata()
            .str("general.architecture")
            .ok_or(ArchError::NoArch)?;
        self.get(arch).ok_or_else(|| ArchError::Unknown {
            arch: arch.to_owned(),
        })
    }
}

/// Tables merge key by key; anything else is replaced.
fn merge(base: &mut toml::Table, own: toml::Table) {
    for (key, value) in own {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_descriptors_parse_and_have_distinct_names() {
        let registry = Registry::builtin();
        let names: usize = registry.descriptors.iter().map(|d| d.names.len()).sum();
        assert_eq!(names, registry.by_name.len());
        assert!(names >= 6);
    }

    #[test]
    fn mistakes_name_their_line() {
        let mut registry = Registry::builtin();
        let error = registry
            .add_text("my.toml", "names = ['x']\n\n[ropee]\npairing = 'halves'\n")
            .unwrap_err();
        assert!(error.to_string().contains("line 3"), "{error}");
        let error = registry
            .add_text("my.toml", "names = ['x']\n[rope]\nwhen = '1 +'\n")
            .unwrap_err();
        assert!(error.to_string().contains("line 3"), "{error}");
        let error = registry
            .add_text("my.toml", "names = ['x']\nextends = 'nothing'\n")
            .unwrap_err();
        assert!(error.to_string().contains("nothing"), "{error}");
    }
}
