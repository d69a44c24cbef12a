//! What is asked for: a repository, perhaps one of its quantised files.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::error::{HubError, Result};

/// A repository and which of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `user/name`.
    pub repo: String,
    /// Type of the GGUF file, such as `q4_k_m`; `None` for the best there is.
    pub quant: Option<String>,
    /// A file of the repository, whatever its type; the other parts of a split one come with it.
    pub file: Option<String>,
    /// Branch, tag or commit.
    pub revision: String,
}

impl Wanted {
    /// Reads the address of a file, `ENDPOINT/user/name/resolve/revision/file`.
    ///
    /// # Errors
    /// An address of another place, or of something else there.
    pub fn from_url(url: &str, endpoint: &str) -> Result<Self> {
        let wrong = || HubError::Url {
            found: url.to_owned(),
            endpoint: endpoint.to_owned(),
        };
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let path = path
            .strip_prefix(endpoint)
            .and_then(|p| p.strip_prefix('/'));
        let parts: Vec<&str> = path.unwrap_or_default().splitn(5, '/').collect();
        let [user, name, "resolve" | "blob", revision, file] = parts[..] else {
            return Err(wrong());
        };
        let wanted: Wanted = format!("{user}/{name}@{revision}").parse()?;
        (!file.is_empty()).then_some(()).ok_or_else(wrong)?;
        Ok(Wanted {
            file: Some(file.to_owned()),
            ..wanted
        })
    }
}

impl FromStr for Wanted {
    type Err = HubError;

    /// Reads `user/name`, `user/name:quant` and `user/name@revision`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || HubError::Name {
            found: text.to_owned(),
        };
        let (rest, quant) = match text.split_once(':') {
            Some((rest, quant)) => (rest, Some(quant.to_owned())),
            None => (text, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && part.chars().all(known) && !part.chars().all(|c| c == '.')
        };
        let (user, name) = repo.split_once('/').ok_or_else(wrong)?;
        let fits =
            plain(user) && plain(name) && plain(revision) && quant.as_deref().is_none_or(plain);
        fits.then(|| Wanted {
            repo: repo.to_owned(),
            quant,
            file: None,
            revision: revision.to_owned(),
        })
        .ok_or_else(wrong)
    }
}

/// Types that are taken where none is asked for, best first.
const USUAL: [&str; 6] = ["q4_k_m", "q5_k_m", "q8_0", "q4_0", "f16", "bf16"];

/// The files of a repository that make up what is wanted.
///
/// # Errors
/// No model, or none of the type asked for.
pub fn choose(wanted: &Wanted, files: &[String]) -> Result<Vec<String>> {
    if let Some(file) = &wanted.file {
        return choose_file(wanted, file, files);
    }
    let gguf: Vec<&String> = files.iter().filter(|f| is_model(f)).collect();
    if !gguf.is_empty() {
        return choose_gguf(wanted, &gguf);
    }
    let weights = |f: &String| f.ends_with(".safetensors") && !f.contains('/');
    let config = files.iter().any(|f| f == "config.json");
    if wanted.quant.is_some() || !config || !files.iter().any(weights) {
        let repo = wanted.repo.clone();
        return Err(HubError::NoModel { repo });
    }
    const ENDINGS: [&str; 5] = [".json", ".model", ".txt", ".jinja", ".tiktoken"];
    let beside = |f: &&String| {
        let pooling = f.as_str() == "1_Pooling/config.json";
        weights(f) || pooling || !f.contains('/') && ENDINGS.iter().any(|e| f.ends_with(e))
    };
    Ok(files.iter().filter(beside).cloned().collect())
}

/// The file of that name, in which a star stands for anything, and where it is one of several parts, all of them.
fn choose_file(wanted: &Wanted, file: &str, files: &[String]) -> Result<Vec<String>> {
    let stem = |name: &str| part_stem(name).map(str::to_owned);
    let named: Vec<&String> = files.iter().filter(|name| is_like(name, file)).collect();
    let models: BTreeSet<&str> = named
        .iter()
        .map(|name| part_stem(name).unwrap_or(name))
        .collect();
    if models.len() != 1 {
        let known: Vec<&str> = match models.is_empty() {
            true => files
                .iter()
                .map(String::as_str)
                .filter(|f| is_model(f))
                .collect(),
            false => named.iter().map(|name| name.as_str()).collect(),
        };
        return Err(HubError::NoFile {
            repo: wanted.repo.clone(),
            file: file.to_owned(),
            known: known.join(", "),
        });
    }
    let first = named[0];
    let same =
        |name: &&String| *name == first || stem(first).is_some_and(|s| stem(name) == Some(s));
    Ok(files.iter().filter(same).cloned().collect())
}

/// Whether a name is that of a file, in which each star stands for anything.
fn is_like(name: &str, file: &str) -> bool {
    let Some((start, mut rest)) = file.split_once('*') else {
        return name == file;
    };
    let Some(mut name) = name.strip_prefix(start) else {
        return false;
    };
    while let Some((part, behind)) = rest.split_once('*') {
        let Some((_, left)) = name.split_once(part) else {
            return false;
        };
        (name, rest) = (left, behind);
    }
    name.ends_with(rest)
}

/// What stands before `-00001-of-00002.gguf`.
fn part_stem(file: &str) -> Option<&str> {
    const NUMBERS: usize = "-00001-of-00002".len();
    let name = file.strip_suffix(".gguf")?;
    let at = name.len().checked_sub(NUMBERS)?;
    let (stem, numbers) = name.split_at_checked(at)?;
    let numbers = numbers.strip_prefix('-')?.split_once("-of-")?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(numbers.0) && digits(numbers.1)).then_some(stem)
}

/// GGUF files that hold a language model, not a projector of one that sees.
fn is_model(file: &str) -> bool {
    file.ends_with(".gguf") && !file.to_lowercase().contains("mmproj")
}

fn choose_gguf(wanted: &Wanted, files: &[&String]) -> Result<Vec<String>> {
    let of = |quant: &str| -> Vec<String> {
        let quant = quant.to_lowercase();
        let fits = |f: &&&String| file_type(f).is_some_and(|t| t == quant);
        files.iter().filter(fits).map(|f| (*f).clone()).collect()
    };
    let found = match &wanted.quant {
        Some(quant) => of(quant),
        None => USUAL
            .iter()
            .map(|q| of(q))
            .find(|f| !f.is_empty())
            .unwrap_or_else(|| {
                let first = file_type(files[0]).unwrap_or_default();
                let same = of(&first);
                if same.is_empty() {
                    vec![files[0].clone()]
                } else {
                    same
                }
            }),
    };
    if found.is_empty() {
        let mut known: Vec<String> = files.iter().filter_map(|f| file_type(f)).collect();
        known.sort();
        known.dedup();
        return Err(HubError::NoQuant {
            repo: wanted.repo.clone(),
            quant: wanted.quant.clone().unwrap_or_default(),
            known: known.join(", "),
        });
    }
    Ok(found)
}

/// The type in a file's name: what stands before `.gguf` or the number of a split file, after a dash or a dot.
#[must_use]
pub fn file_type(file: &str) -> Option<String> {
    let name = file
        .rsplit('/')
        .next()?
        .strip_suffix(".gguf")?
        .to_lowercase();
    let mut words: Vec<&str> = name.split(['-', '.']).collect();
    if let [.., first, "of", last] = words.as_slice()
        && first.len() == 5
        && last.len() == 5
    {
        words.truncate(words.len() - 3);
    }
    let kind = words.last()?;
    let quant = ["q", "iq", "tq", "f16", "f32", "bf16", "mxfp4", "nvfp4"];
    let known =
        quant.iter().any(|q| kind.starts_with(q)) && kind.chars().any(|c| c.is_ascii_digit());
    known.then(|| (*kind).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn names_are_read_and_wrong_ones_refused() {
        let wanted: Wanted = "a/b-c.1@v2:Q8_0".parse().expect("a name");
        assert_eq!(
            (wanted.repo.as_str(), wanted.revision.as_str()),
            ("a/b-c.1", "v2")
        );
        for wrong in ["a", "a/b/c", "a/..", "../b", "a/b:", "a/b c", "a/b@", "/b"] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_asked_type_is_taken_with_all_its_parts() {
        let all = files(&[
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q8_0-00002-of-00002.gguf",
            "mmproj-f16.gguf",
        ]);
        let pick = |text: &str| choose(&text.parse().expect("a name"), &all);
        assert_eq!(pick("a/b").expect("a model"), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick("a/b:q8_0").expect("a model").len(), 2);
        let error = pick("a/b:q2_k").expect_err("no such type").to_string();
        assert!(error.contains("q4_k_m, q8_0"), "{error}");
    }

    #[test]
    fn a_named_file_is_taken_with_its_other_parts() {
        let all = files(&[
            "a-Q4_K_M.gguf",
            "b/a-Q8_0-00001-of-00002.gguf",
            "b/a-Q8_0-00002-of-00002.gguf",
        ]);
        let pick = |file: &str| {
            let wanted: Wanted = "a/b".parse().expect("a name");
            let file = Some(file.to_owned());
            choose(&Wanted { file, ..wanted }, &all)
        };
        assert_eq!(
            pick("a-Q4_K_M.gguf").expect("it is there"),
            [all[0].clone()]
        );
        let parts = pick("b/a-Q8_0-00001-of-00002.gguf").expect("it is there");
        assert_eq!(parts, all[1..]);
        assert_eq!(
            pick("*q4_k_m*").unwrap_or_default(),
            [""; 0],
            "as it is written"
        );
        assert_eq!(pick("*Q4_K_M.gguf").expect("one"), [all[0].clone()]);
        assert_eq!(pick("b/*-Q8*of*.gguf").expect("one"), all[1..]);
        let error = pick("*a-*.gguf").expect_err("two").to_string();
        assert!(error.contains("a-Q4_K_M.gguf, b/a-Q8_0"), "{error}");
        let error = pick("c.gguf").expect_err("it is not there").to_string();
        assert!(
            error.contains("c.gguf") && error.contains("a-Q4_K_M.gguf"),
            "{error}"
        );
    }

    #[test]
    fn addresses_of_files_are_read() {
        let read = |url: &str| Wanted::from_url(url, "https://hub");
        let wanted =
            read("https://hub/a/b/resolve/main/c/d.gguf?download=true").expect("it is one");
        assert_eq!(
            (wanted.repo.as_str(), wanted.file.as_deref()),
            ("a/b", Some("c/d.gguf"))
        );
        for wrong in [
            "https://other/a/b/resolve/main/c.gguf",
            "https://hub/a/b",
            "c.gguf",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_is_taken_without_what_is_no_part_of_it() {
        let all = files(&[
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "1_Pooling/config.json",
            ".gitattributes",
        ]);
        let found = choose(&"a/b".parse().expect("a name"), &all).expect("a model");
        assert_eq!(
            found,
            [
                "config.json",
                "model.safetensors",
                "tokenizer.json",
                "1_Pooling/config.json"
            ]
        );
    }
}
