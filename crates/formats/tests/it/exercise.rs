//! Uses a file in every way a program does. The fuzz targets use this file too.

use tokkata_formats::{Endian, GgufWriter, ModelFile, TensorInfo};

/// Opens `bytes`; whatever opens must hold what the crate promises of a model. Says whether it opened.
pub(crate) fn exercise(bytes: &[u8]) -> bool {
    let model = match ModelFile::from_bytes(bytes.to_vec()) {
        Ok(model) => model,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 1000, "{text}");
            return false;
        }
    };
    for info in model.tensors() {
        check_tensor(&model, info, bytes);
    }
    refuse_shared_bytes(&model);
    rewrite(&model);
    true
}

fn check_tensor(model: &ModelFile, info: &TensorInfo, file: &[u8]) {
    assert_eq!(model.tensor(&info.name), Some(info));
    assert_eq!(
        info.dtype.row_bytes(info.elements()),
        Some(info.bytes as usize)
    );
    assert_eq!(info.rows() * info.row_bytes(), info.bytes as usize);
    assert_eq!(info.dims_ggml().iter().product::<usize>(), info.elements());
    assert!(
        info.offset
            .is_multiple_of(model.layout().unwrap().alignment)
    );
    let mut read = vec![0; info.bytes as usize];
    match (model.data(info), model.read_at(info, 0, &mut read)) {
        (Ok(data), Ok(())) => assert_eq!(data, read),
        (Err(_), Err(_)) => assert_eq!(model.layout().unwrap().endian, Endian::Big),
        (a, b) => panic!("{a:?} and {b:?} disagree"),
    }
    if model.layout().unwrap().endian == Endian::Little {
        assert_eq!(read, file[info.offset as usize..][..read.len()]);
    }
    assert!(model.read_at(info, info.bytes, &mut [0]).is_err());
    assert!(model.read_at(info, u64::MAX, &mut [0]).is_err());
}

fn refuse_shared_bytes(model: &ModelFile) {
    let mut ranges: Vec<_> = model
        .tensors()
        .iter()
        .map(|t| (t.offset, t.offset + t.bytes))
        .collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
}

/// What reads must write, and read back the same.
fn rewrite(model: &ModelFile) {
    let mut writer = GgufWriter::new("<memory>", model.metadata().clone()).unwrap();
    let mut data = Vec::new();
    for info in model.tensors() {
        let Ok(bytes) = model.data(info) else { return };
        if writer.declare(&info.name, info.dtype, &info.shape).is_err() {
            assert!(info.name.len() > 63);
            return;
        }
        data.push(bytes);
    }
    if model.layout().unwrap().alignment > 4096 {
        return;
    }
    let again = ModelFile::from_bytes(writer.to_bytes(data.iter().copied()).unwrap()).unwrap();
    assert_eq!(again.tensors().len(), data.len());
    for (info, bytes) in again.tensors().iter().zip(data) {
        assert_eq!(again.data(info).unwrap(), bytes);
    }
    assert_eq!(again.metadata().len(), model.metadata().len());
}

/// The same for one safetensors file.
pub(crate) fn exercise_safetensors(bytes: &[u8]) -> bool {
    let model = match ModelFile::from_safetensors_bytes(bytes.to_vec()) {
        Ok(model) => model,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 1000, "{text}");
            return false;
        }
    };
    let plain = model.tensors().iter().map(|t| (t.offset, t.bytes));
    let other = model.other_tensors().iter().map(|t| (t.offset, t.bytes));
    let mut spans: Vec<_> = plain.chain(other).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
    assert!(spans.last().is_none_or(|s| s.0 + s.1 == bytes.len() as u64));
    for info in model.tensors() {
        assert_eq!(
            info.dtype.row_bytes(info.elements()),
            Some(info.bytes as usize)
        );
        assert_eq!(info.rows() * info.row_bytes(), info.bytes as usize);
        assert_eq!(info.dims_ggml().iter().product::<usize>(), info.elements());
        assert_eq!(
            model.data(info).unwrap(),
            &bytes[info.offset as usize..][..info.bytes as usize]
        );
    }
    for stored in model.other_tensors() {
        let mut read = vec![0; stored.bytes as usize];
        model.read_stored_at(stored, 0, &mut read).unwrap();
        assert_eq!(read, bytes[stored.offset as usize..][..read.len()]);
    }
    true
}

/// A whole file from a fuzz input: raw, or a header text whose length is always right.
pub(crate) fn safetensors_input(input: &[u8]) -> Vec<u8> {
    match input {
        [kind, low, high, header @ ..] if kind % 4 != 0 => {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header);
            bytes.resize(
                bytes.len() + usize::from(u16::from_le_bytes([*low, *high])),
                *kind,
            );
            bytes
        }
        [_, raw @ ..] => raw.to_vec(),
        [] => Vec::new(),
    }
}

/// A model in two files: two bytes tell how long the first is. Says whether it opened.
pub(crate) fn exercise_split(input: &[u8]) -> bool {
    let [low, high, parts @ ..] = input else {
        return false;
    };
    let cut = usize::from(u16::from_le_bytes([*low, *high])).min(parts.len());
    let (first, second) = parts.split_at(cut);
    let model = match ModelFile::from_bytes_parts([first.to_vec(), second.to_vec()]) {
        Ok(model) => model,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 1000, "{text}");
            return false;
        }
    };
    for info in model.tensors() {
        let mut read = vec![0; info.bytes as usize];
        model.read_at(info, 0, &mut read).unwrap();
        assert!(model.read_at(info, info.bytes, &mut [0]).is_err());
    }
    true
}

/// A directory whose configuration and index, cut apart at a zero byte, are given.
pub(crate) fn exercise_directory(dir: &std::path::Path, input: &[u8]) -> bool {
    let (config, index) = match input.iter().position(|&b| b == 0) {
        Some(cut) => (&input[..cut], &input[cut + 1..]),
        None => (input, &input[..0]),
    };
    std::fs::write(dir.join("config.json"), config).unwrap();
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    match ModelFile::open(dir) {
        Ok(model) => {
            let directory = model.directory().unwrap();
            assert!(
                directory
                    .side_files()
                    .unwrap()
                    .contains(&"config.json".to_owned())
            );
            true
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            false
        }
    }
}
