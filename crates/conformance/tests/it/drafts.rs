//! Every architecture that writes: guesses of every kind change no text and nothing that is cached of it.

use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::drafts::{Cover, names, verify};
use tokkata_ir::Device;

fn check(device: &dyn Device) {
    let (names, least) = names();
    verify(device, &names, Cover::Pairs, (least, 1));
}

#[test]
fn drafts_change_neither_texts_nor_caches() {
    check(&CpuBackend);
}

#[test]
fn drafts_change_neither_texts_nor_caches_on_the_gpu() {
    match tokkata_conformance::cuda() {
        Ok(cuda) => check(&cuda),
        Err(why) => eprintln!("skipped: cuda: {why}"),
    }
}
