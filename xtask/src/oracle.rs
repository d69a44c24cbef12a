//! The oracle outside the repository: llama.cpp behind a small driver.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokkata_conformance::generate;
use tokkata_conformance::golden::bisect::Named;
use tokkata_conformance::golden::{Golden, Rows, floats};

const DRIVER: &str = include_str!("../../crates/conformance/data/oracle_rows.cpp");
/// What goldens call it.
pub(crate) const ORACLE: &str = "llama.cpp of llama-cpp-python 0.3.36";

/// The oracle's programs outside the repository.
pub(crate) struct Oracle {
    folder: PathBuf,
    driver: PathBuf,
    exact: bool,
}

impl Oracle {
    /// Opens the oracle; `exact` asks for the one that computes GELU.
    ///
    /// # Errors
    /// No oracle, or a driver that does not compile.
    pub(crate) fn open(exact: bool) -> Result<Self> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let default = || home.map(|h| h.join(".cache/tokkata-oracle"));
        let folder = std::env::var_os("ORACLE")
            .map(PathBuf::from)
            .or_else(default);
        let folder = folder.context("neither ORACLE nor HOME is set")?;
        ensure!(folder.is_dir(), "no oracle in {}", folder.display());
        std::fs::create_dir_all(folder.join("goldens"))?;
        let driver = folder.join(match exact {
            true => "goldens/oracle_rows_exact",
            false => "goldens/oracle_rows",
        });
        let oracle = Oracle {
            folder,
            driver,
            exact,
        };
        oracle.build()?;
        Ok(oracle)
    }

    /// What goldens call it.
    pub(crate) fn title(&self) -> String {
        let how = if self.exact {
            ", GELU without its table"
        } else {
            ""
        };
        format!("{ORACLE}{how}")
    }

    /// Compiles the driver where its source is new.
    fn build(&self) -> Result<()> {
        let source = self.driver.with_extension("cpp");
        if self.driver.exists() && std::fs::read_to_string(&source).is_ok_and(|s| s == DRIVER) {
            return Ok(());
        }
        std::fs::write(&source, DRIVER)?;
        let libraries = [
            "src/libllama.a",
            "ggml/src/libggml.a",
            match self.exact {
                true => "../exact/libggml-cpu.a",
                false => "ggml/src/libggml-cpu.a",
            },
            "ggml/src/libggml-base.a",
        ];
        let status = Command::new("g++")
            .args(["-O1", "-fopenmp"])
            .arg(format!("-I{}", self.folder.join("src/include").display()))
            .arg(format!(
                "-I{}",
                self.folder.join("src/ggml/include").display()
            ))
            .arg(&source)
            .args(libraries.map(|l| self.folder.join("build").join(l)))
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&self.driver)
            .status()
            .context("g++")?;
        ensure!(status.success(), "the oracle's driver does not compile");
        Ok(())
    }

    /// The rows of a golden's model.
    ///
    /// # Errors
    /// What the oracle says.
    pub(crate) fn rows(&self, golden: &Golden) -> Result<Vec<f32>> {
        let out = self.run(golden, golden.rows.name(), None)?;
        Ok(floats(&std::fs::read(&out)?))
    }

    /// The rows of a golden's model through an adapter.
    ///
    /// # Errors
    /// What the oracle says.
    pub(crate) fn adapted(&self, golden: &Golden, adapter: &[u8]) -> Result<Vec<f32>> {
        let out = self.run(golden, golden.rows.name(), Some(adapter))?;
        Ok(floats(&std::fs::read(&out)?))
    }

    /// Every float tensor of the oracle's graph, in its order.
    ///
    /// # Errors
    /// What the oracle says.
    pub(crate) fn nodes(&self, golden: &Golden) -> Result<Vec<Named>> {
        let out = self.run(golden, &format!("{}+nodes", golden.rows.name()), None)?;
        let bytes = std::fs::read(out.with_extension("bin.nodes"))?;
        named(&bytes).context("the oracle's tensors end too early")
    }

    /// Runs the driver; where it wrote.
    fn run(&self, golden: &Golden, kind: &str, adapter: Option<&[u8]>) -> Result<PathBuf> {
        let model = self.folder.join(format!("goldens/{}.gguf", golden.name));
        let (bytes, drafter) = generate::apart(golden).map_err(|e| anyhow!(e))?;
        std::fs::write(&model, bytes)?;
        let out = model.with_extension("bin");
        let mut command = Command::new(&self.driver);
        command.args([&model, &out]).arg(kind);
        command.arg(list(&golden.ids()));
        if golden.rows == Rows::Decoder {
            command.arg(list(&golden.decoder_ids()));
        }
        if let Some(bytes) = adapter {
            let path = model.with_extension("lora");
            std::fs::write(&path, bytes)?;
            command.arg(format!("lora={}", path.display()));
        }
        if let Some(bytes) = drafter {
            let path = model.with_extension("draft");
            std::fs::write(&path, bytes)?;
            command.arg(format!("draft={}", path.display()));
        }
        let output = command.output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!(
                "the oracle: {}",
                text.lines().next().unwrap_or("no message")
            );
        }
        Ok(out)
    }
}

/// Lines of a name, an op and a count, each followed by its values.
fn named(mut bytes: &[u8]) -> Option<Vec<Named>> {
    let mut all = Vec::new();
    while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut words = line.split('\t');
        let (name, op) = (words.next()?.to_owned(), words.next()?.to_owned());
        let count: usize = words.next()?.parse().ok()?;
        let data = bytes.get(end + 1..)?.get(..4 * count)?;
        bytes = &bytes[end + 1 + 4 * count..];
        all.push(Named {
            name,
            op,
            floats: floats(data),
        });
    }
    Some(all)
}

fn list(ids: &[u32]) -> String {
    let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn tensors_follow_their_lines() {
        let mut bytes = b"l_out-0\tADD\t1\n".to_vec();
        bytes.extend(2.5_f32.to_le_bytes());
        bytes.extend(b"x\tMUL\t0\n");
        let all = named(&bytes).unwrap();
        assert_eq!((all[0].name.as_str(), all[0].floats[0]), ("l_out-0", 2.5));
        assert_eq!(all.len(), 2);
        assert!(named(b"x\tMUL\t9\n").is_none());
    }
}
