//! `peers`: builds the peers of `bench-peers` from their source packages, for this machine, for AVX2 and for AVX-512.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// A peer, and the Python package that carries its sources.
struct Peer {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// Where in the package they lie.
    vendor: &'static str,
    /// Programs beside llama-bench.
    more: &'static [&'static str],
    /// Files that the package lacks.
    lacks: &'static [(&'static str, &'static str)],
    /// What stands before a file of it.
    before: &'static [(&'static str, &'static str)],
}

const PEERS: [Peer; 2] = [
    Peer {
        name: "llama.cpp",
        package: "llama-cpp-python",
        version: "0.3.36",
        vendor: "vendor/llama.cpp",
        more: &["llama-batched-bench"],
        lacks: &[],
        before: &[("ggml/src/ggml-cpu/amx/mmq.cpp", KEEP_STORES)],
    },
    Peer {
        name: "ik_llama.cpp",
        package: "ik-llama-cpp-python",
        version: "0.1.5",
        vendor: "vendor/ik_llama.cpp",
        more: &[],
        lacks: &[("common/cmake/build-info-gen-cpp.cmake", BUILD_INFO)],
        before: &[],
    },
];

/// Fills in the template beside the file that includes it; there is no history to ask for a number.
const BUILD_INFO: &str = r#"set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "unknown")
configure_file("${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp.in" "${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp" @ONLY)
"#;

/// GCC 12 takes the configuration of tiles that `ldtilecfg` reads for eight bytes, and leaves out the stores to others.
const KEEP_STORES: &str = "#pragma GCC optimize(\"no-tree-dse\", \"no-dse\")\n";

/// A build: its name and which instructions it may use.
const BUILDS: [(&str, &[&str]); 3] = [
    ("native", &["-DGGML_NATIVE=ON"]),
    ("avx2", AVX2),
    ("avx512", AVX512),
];
const AVX2: &[&str] = &[
    "-DGGML_NATIVE=OFF",
    "-DGGML_AVX=ON",
    "-DGGML_AVX2=ON",
    "-DGGML_FMA=ON",
    "-DGGML_F16C=ON",
    "-DGGML_BMI2=ON",
];
const AVX512: &[&str] = &[
    "-DGGML_NATIVE=OFF",
    "-DGGML_AVX=ON",
    "-DGGML_AVX2=ON",
    "-DGGML_FMA=ON",
    "-DGGML_F16C=ON",
    "-DGGML_BMI2=ON",
    "-DGGML_AVX512=ON",
    "-DGGML_AVX512_VBMI=ON",
    "-DGGML_AVX512_VNNI=ON",
    "-DGGML_AVX512_BF16=ON",
];
/// What every build has in common.
const COMMON: [&str; 7] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_EXAMPLES=ON",
    "-DLLAMA_BUILD_TOOLS=ON",
];

const USAGE: &str = "usage: cargo xtask peers FOLDER [NAME]…

  FOLDER     where sources and builds go, some gigabytes; packages that lie there are not downloaded
  NAME       builds whose name contains this, such as 'llama.cpp-avx2'; all six without one";

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (folder, only) = args.split_first().context(USAGE)?;
    let folder = std::path::absolute(folder)?;
    std::fs::create_dir_all(&folder)?;
    for peer in &PEERS {
        for (name, flags) in BUILDS {
            let name = format!("{}-{name}", peer.name);
            if !only.is_empty() && !only.iter().any(|o| name.starts_with(o.as_str())) {
                continue;
            }
            let source = peer.source(&folder)?;
            let program = peer.build((&folder, &source), &name, flags)?;
            println!("--peer {name}={}", program.display());
        }
    }
    Ok(())
}

impl Peer {
    /// The sources, unpacked and completed once.
    fn source(&self, folder: &Path) -> Result<PathBuf> {
        let source = folder.join(self.name);
        if !source.is_dir() {
            let stem = format!("{}-{}", self.package.replace('-', "_"), self.version);
            let archive = folder.join(format!("{stem}.tar.gz"));
            if !archive.is_file() {
                self.download(folder)?;
            }
            shell::run(
                Command::new("tar")
                    .arg("xzf")
                    .arg(&archive)
                    .arg("-C")
                    .arg(folder),
            )?;
            let sources = folder.join(&stem).join(self.vendor);
            complete(&sources, self.lacks)?;
            begin(&sources, self.before)?;
            std::fs::rename(&sources, &source)
                .with_context(|| format!("{} is not in {}", self.vendor, archive.display()))?;
            std::fs::remove_dir_all(folder.join(stem))?;
        }
        Ok(source)
    }

    fn download(&self, folder: &Path) -> Result<()> {
        let package = format!("{}=={}", self.package, self.version);
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "-q", "--no-deps"]);
        pip.args(["--no-binary", self.package, &package, "-d"])
            .arg(folder);
        shell::run(&mut pip)
    }

    /// One build; gives its llama-bench.
    fn build(
        &self,
        (folder, source): (&Path, &Path),
        name: &str,
        flags: &[&str],
    ) -> Result<PathBuf> {
        let build = folder.join(format!("{name}-build"));
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(source).arg("-B").arg(&build);
        shell::run(configure.args(COMMON).args(flags))?;
        let threads = std::thread::available_parallelism()?.to_string();
        let mut make = Command::new("cmake");
        make.arg("--build").arg(&build).args(["-j", &threads]);
        make.args(["--target", "llama-bench"]).args(self.more);
        shell::run(&mut make)?;
        let program = build.join("bin/llama-bench");
        ensure!(program.is_file(), "{} was not built", program.display());
        Ok(program)
    }
}

/// Writes files that a package lacks; one that is there says that a newer package needs none.
fn complete(sources: &Path, lacks: &[(&str, &str)]) -> Result<()> {
    for (name, text) in lacks {
        let file = sources.join(name);
        if !file.exists() {
            let folder = file.parent().context("a file lies in a folder")?;
            std::fs::create_dir_all(folder)?;
            std::fs::write(file, text)?;
        }
    }
    Ok(())
}

/// Puts lines before what files hold.
fn begin(sources: &Path, before: &[(&str, &str)]) -> Result<()> {
    for (name, lines) in before {
        let file = sources.join(name);
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("the package has no {name}"))?;
        std::fs::write(&file, format!("{lines}{text}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_package_lacks_is_written_once() {
        let folder = std::env::temp_dir().join(format!("tokkata-peers-{}", std::process::id()));
        let lacks = [("common/cmake/x.cmake", "first")];
        complete(&folder, &lacks).unwrap();
        complete(&folder, &[("common/cmake/x.cmake", "second")]).unwrap();
        let text = std::fs::read_to_string(folder.join("common/cmake/x.cmake")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text, "first");
    }

    #[test]
    fn every_build_says_which_instructions_it_uses() {
        for (name, flags) in BUILDS {
            let native = flags.contains(&"-DGGML_NATIVE=ON");
            assert_eq!(native, name == "native", "{name}");
            assert_eq!(
                flags.contains(&"-DGGML_AVX512=ON"),
                name == "avx512",
                "{name}"
            );
        }
    }
}
