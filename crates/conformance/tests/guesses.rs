//! The multi-token-prediction head of every family that has one guesses for its own trunk.

use tokkata_backend_cpu::CpuBackend;
use tokkata_conformance::guesses;

#[test]
fn heads_guess_what_their_logits_say_and_change_no_text() {
    guesses::verify(&CpuBackend);
}
