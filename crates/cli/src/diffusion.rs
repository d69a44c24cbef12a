//! Flags of models that fill masks, with llama.cpp's names, and what people see meanwhile.

use anyhow::Result;
use clap::Args;
use tokkata::diffusion::{Algorithm, Denoised, DiffusionOptions, Schedule, Watch};
use tokkata::{DecodeOptions, Model};

use crate::args::usage;
use crate::console::{Wait, say};

/// How a diffusion model fills its answer.
#[derive(Debug, Args)]
#[command(next_help_heading = "Diffusion models")]
pub(crate) struct DiffusionArgs {
    /// Steps in all
    #[arg(long, value_name = "N", default_value_t = 128, hide_short_help = true)]
    diffusion_steps: usize,
    /// Fill a share of the masks that follows the time, down to this one [default: 0.001]
    #[arg(
        long,
        value_name = "X",
        conflicts_with = "diffusion_block_length",
        hide_short_help = true
    )]
    diffusion_eps: Option<f32>,
    /// Fill block after block of this length instead
    #[arg(long, value_name = "N", hide_short_help = true)]
    diffusion_block_length: Option<usize>,
    /// Which tokens stay first: origin, entropy, margin, random or confidence, or its number 0 to 4
    #[arg(long, value_name = "NAME", default_value = "confidence", value_parser = algorithm, hide_short_help = true)]
    diffusion_algorithm: Algorithm,
    /// Draw the positions that stay with this temperature; 0 for the surest
    #[arg(long, value_name = "T", default_value_t = 0.0, hide_short_help = true)]
    diffusion_alg_temp: f32,
    /// Strength of classifier-free guidance; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, hide_short_help = true)]
    diffusion_cfg_scale: f32,
    /// Draw tokens from all of their distribution, as by Gumbel noise
    #[arg(long, value_name = "0|1", num_args = 0..=1, default_missing_value = "1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..2), hide_short_help = true)]
    diffusion_add_gumbel_noise: u8,
    /// Show the answer as it forms
    #[arg(long, hide_short_help = true)]
    diffusion_visual: bool,
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Algorithm::ALL.iter().map(|a| a.0).collect();
        format!(
            "found '{text}', expected one of {}, or 0 to 4",
            names.join(", ")
        )
    })
}

impl DiffusionArgs {
    fn options(&self) -> Result<DiffusionOptions> {
        let usual = DiffusionOptions::default();
        let schedule = match (self.diffusion_block_length, self.diffusion_eps) {
            (Some(length), _) => Schedule::Blocks { length },
            (None, Some(eps)) => Schedule::Timesteps { eps },
            (None, None) => usual.schedule,
        };
        let in_range = match schedule {
            Schedule::Blocks { length } => length > 0,
            Schedule::Timesteps { eps } => (0.0..1.0).contains(&eps),
        };
        let scales = [self.diffusion_alg_temp, self.diffusion_cfg_scale];
        if self.diffusion_steps == 0 || !in_range || scales.iter().any(|x| x.is_nan() || *x < 0.0) {
            return Err(usage(
                "found a --diffusion value out of its range, expected steps and block length of at least 1, eps from 0 to 1, temperature and scale of at least 0",
            ));
        }
        Ok(DiffusionOptions {
            steps: self.diffusion_steps,
            schedule,
            algorithm: self.diffusion_algorithm,
            algorithm_temperature: self.diffusion_alg_temp,
            guidance: self.diffusion_cfg_scale,
            gumbel: self.diffusion_add_gumbel_noise == 1,
        })
    }

    /// Sets how a model fills masks; nothing for other models. `stop` ends an answer early.
    pub(crate) fn apply(
        &self,
        model: &mut Model,
        stop: impl Fn() -> bool + Send + 'static,
    ) -> Result<()> {
        if !model.is_diffusion() {
            return Ok(());
        }
        let visual = if self.diffusion_visual {
            Some((model.tokenizer()?.clone(), model.mask()?))
        } else {
            None
        };
        let mut wait = None;
        let watch = move |seen: Denoised<'_>| {
            let (step, steps) = (seen.step as u64, seen.steps as u64);
            match &visual {
                Some((tokenizer, mask)) => {
                    let shown: Vec<u32> =
                        seen.tokens.iter().copied().filter(|t| t != mask).collect();
                    let text = tokenizer.decode(&shown, DecodeOptions::default());
                    let text = String::from_utf8_lossy(&text);
                    say(&format!("\x1b[2J\x1b[Hstep {step}/{steps}\n{text}"));
                }
                None if step == 0 => wait = Some(Wait::new("filling masks")),
                None => {
                    if let Some(wait) = &wait {
                        wait.set(step, steps);
                    }
                }
            }
            if step == steps {
                wait = None;
            }
            !stop()
        };
        let watch: Watch = Box::new(watch);
        model.set_diffusion(self.options()?, Some(watch));
        Ok(())
    }
}
