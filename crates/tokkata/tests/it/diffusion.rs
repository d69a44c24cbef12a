//! Diffusion models fill their masks as llama.cpp's `diffusion_generate` does. `golden/diffusion.json` holds its
//! tokens, drawn as the likeliest candidate (F32 cache, no flash attention); for the entropy algorithm with the sign
//! of Dream and RND1, where the least entropy counts as the surest.

use crate::common::{checkpoint, golden, options};
use serde_json::Value;
use tokkata::diffusion::{Algorithm, Canvas, DiffusionOptions, Schedule};
use tokkata::{Model, OpenOptions, Sampling};

fn load(name: &str, length: u32) -> Model {
    let options = OpenOptions {
        ctx: std::num::NonZeroU32::new(length),
        ..options()
    };
    Model::load(checkpoint(name, &golden(name)), &options, None).expect(name)
}

fn filled(model: &mut Model, case: &Value, sampling: &Sampling) -> Vec<u32> {
    let float = |key: &str| case[key].as_f64().unwrap() as f32;
    let size = |key: &str| case[key].as_u64().unwrap() as usize;
    let schedule = match size("block") {
        0 => Schedule::Timesteps { eps: float("eps") },
        length => Schedule::Blocks { length },
    };
    let prompt: Vec<u32> = serde_json::from_value(case["prompt"].clone()).unwrap();
    let canvas = Canvas {
        prompt: &prompt,
        length: size("length"),
        mask: size("mask") as u32,
    };
    let options = DiffusionOptions {
        steps: size("steps"),
        schedule,
        algorithm: Algorithm::from_name(case["algorithm"].as_str().unwrap()).unwrap(),
        guidance: float("cfg"),
        ..DiffusionOptions::default()
    };
    let tokens = model.denoise(&canvas, &options, sampling, |_| true);
    tokens.expect("it fills")
}

fn greedy(case: &Value) -> Sampling {
    Sampling {
        top_k: case["top_k"].as_u64().unwrap() as u32,
        top_p: case["top_p"].as_f64().unwrap() as f32,
        ..Sampling::greedy()
    }
}

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("../golden/diffusion.json")).unwrap()
}

#[test]
fn masks_are_filled_as_llama_cpp_fills_them() {
    let models = ["llada", "llada-moe", "dream", "rnd1"].map(|name| (name, load(name, 64)));
    let cases = cases();
    for (name, mut model) in models {
        let own: Vec<&Value> = cases.iter().filter(|c| c["model"] == name).collect();
        assert!(own.len() >= 10, "{name}");
        for case in own {
            let want: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
            assert_eq!(filled(&mut model, case, &greedy(case)), want, "{case}");
        }
    }
}

#[test]
fn a_seed_decides_what_is_drawn() {
    let mut model = load("llada", 64);
    let case = &cases()[0];
    let mut with = |seed: u64| {
        let sampling = Sampling {
            seed,
            temperature: 1.0,
            ..Sampling::default()
        };
        filled(&mut model, case, &sampling)
    };
    assert_eq!(with(5), with(5));
    assert_ne!(with(5), with(6));
}

#[test]
fn an_answer_can_be_ended_early_and_must_fit() {
    let mut model = load("dream", 32);
    let canvas = |length| Canvas {
        prompt: &[5, 6, 7],
        length,
        mask: 1,
    };
    let options = DiffusionOptions::default();
    let sampling = Sampling::greedy();
    let mut steps = 0;
    let tokens = model.denoise(&canvas(32), &options, &sampling, |seen| {
        steps += 1;
        seen.step < 3
    });
    assert!(steps == 4 && tokens.expect("as it is").contains(&1));
    for length in [3, 33] {
        let refused = model.denoise(&canvas(length), &options, &sampling, |_| true);
        assert!(refused.is_err(), "{length}");
    }
    let mut causal = load("llama", 32);
    assert!(
        causal
            .denoise(&canvas(32), &options, &sampling, |_| true)
            .is_err()
    );
}
