//! Signals leave nothing half written, and pipes and devices stay what they are.
#![cfg(unix)]

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{made_up, run, stderr, tokkata};

fn parts(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.ends_with(".part")).collect()
}

/// Waits until a file is being written.
fn wait_for_part(folder: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while parts(folder).is_empty() {
        assert!(Instant::now() < end, "nothing is being written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_leaves_nothing_half_written() {
    for signal in ["TERM", "HUP", "INT"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("made-up.gguf");
        let mut child = tokkata()
            .args(["bench", "--synthetic", "qwen3-4b:f16", "--save"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        wait_for_part(folder.path());
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(sent.expect("kill runs").success());
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{signal}");
        assert_eq!(parts(folder.path()), Vec::<String>::new(), "{signal}");
        assert!(!path.exists(), "{signal}");
    }
}

#[test]
fn pipes_and_devices_are_written_through() {
    let (folder, model) = made_up("q8_0");
    let model = model.to_str().expect("UTF-8");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).expect("bytes")
    });
    let pipe = pipe.to_str().expect("UTF-8");
    let output = run(&["logits", "-m", model, "--ids", "1,2", "-o", pipe]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(reader.join().expect("a reader").len() > 2 * 512 * 4);
    assert!(
        std::fs::metadata(pipe)
            .expect("a pipe")
            .file_type()
            .is_fifo()
    );
    let output = run(&["logits", "-m", model, "--ids", "1,2", "-o", "/dev/null"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let null = std::fs::metadata("/dev/null").expect("a device");
    assert!(null.file_type().is_char_device());
}
