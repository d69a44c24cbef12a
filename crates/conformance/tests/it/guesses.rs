//! The multi-token-prediction heads of every family that has some, and drafters of files of their own, guess.

use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::guesses;

#[test]
fn heads_guess_what_their_logits_say_and_change_no_text() {
    guesses::verify(&CpuBackend);
}

#[test]
fn guesses_change_no_text_on_the_gpu() {
    match tokkata_conformance::cuda() {
        Ok(cuda) => guesses::verify_texts(&cuda),
        Err(why) => eprintln!("skipped: cuda: {why}"),
    }
}
