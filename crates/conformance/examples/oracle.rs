//! Compares models with an oracle's logits: `oracle DIR [--archs FOLDER] [NAME…]`, where DIR holds `archs/*.gguf` and
//! `oracle/*.{bin,ids}` and FOLDER further descriptors. Prints the NMSE of every way of feeding each file.

use std::path::Path;

use tokkata_archs::Registry;
use tokkata_backend_ref::RefBackend;
use tokkata_conformance::models::{Feeding, load, nmse};
use tokkata_formats::ModelFile;
use tokkata_ir::Device;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut registry = Registry::builtin();
    if let Some(at) = args.iter().position(|a| a == "--archs") {
        let folder = args.drain(at..at + 2).nth(1).expect("--archs FOLDER");
        overlay(&mut registry, Path::new(&folder));
    }
    let dir = Path::new(&args[0]);
    let mut files: Vec<_> = std::fs::read_dir(dir.join("archs"))
        .expect("archs/")
        .map(|e| e.expect("entry").path())
        .collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    let (mut good, mut total) = (0, 0);
    for file in files {
        let stem = file
            .file_stem()
            .expect("stem")
            .to_string_lossy()
            .into_owned();
        if args.len() > 1
            && !args[1..]
                .iter()
                .any(|a| stem == *a || stem.starts_with(&format!("{a}-")))
        {
            continue;
        }
        total += 1;
        let text = match compare(&registry, dir, &file, &stem) {
            Ok((text, ok)) => {
                good += usize::from(ok);
                text
            }
            Err(e) => e,
        };
        println!("{stem:<24} {text}");
    }
    println!("{good} of {total} agree");
}

/// Adds every descriptor of a folder, those without a base first.
fn overlay(registry: &mut Registry, folder: &Path) {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("folder")
        .map(|e| e.expect("entry").path())
        .collect();
    files.sort();
    for file in files {
        if let Err(e) = registry.add_file(&file) {
            println!("{e}");
        }
    }
}

fn compare(
    registry: &Registry,
    dir: &Path,
    file: &Path,
    stem: &str,
) -> Result<(String, bool), String> {
    let model = ModelFile::open(file).map_err(|e| e.to_string())?;
    let ids = std::fs::read_to_string(dir.join(format!("oracle/{stem}.ids")))
        .map_err(|e| e.to_string())?;
    let ids: Vec<u32> = ids
        .trim()
        .split(',')
        .map(|t| t.parse().expect("id"))
        .collect();
    let want = std::fs::read(dir.join(format!("oracle/{stem}.bin"))).map_err(|e| e.to_string())?;
    let want: Vec<f32> = want
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().expect("4")))
        .collect();
    let mut text = String::new();
    let mut ok = true;
    let reference = RefBackend::default();
    let devices: [&dyn Device; 1] = [&reference];
    let ways = [
        ("whole", Feeding::WHOLE),
        (
            "by 1",
            Feeding {
                chunk: 1,
                sequences: 1,
                block_size: 1,
                ..Feeding::WHOLE
            },
        ),
        (
            "by 7 ×2",
            Feeding {
                chunk: 7,
                sequences: 2,
                block_size: 16,
                ..Feeding::WHOLE
            },
        ),
    ];
    for device in devices {
        for (name, way) in ways {
            let error = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let got = load(&model, registry, device, ids.len(), way)?.logits(&ids, way)?;
                Ok::<f64, String>(nmse(&got, &want))
            }))
            .unwrap_or_else(|_| Err("panic".to_owned()))
            .map_err(|e| format!("{text} {} {name}: {e}", device.name()))?;
            ok &= error <= 1e-6;
            text += &format!("{} {name} {error:.1e}  ", device.name());
        }
    }
    Ok((text, ok))
}
