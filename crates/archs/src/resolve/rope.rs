//! Rotary embeddings: every scaling kind becomes an angle per pair and one magnitude.

use std::f64::consts::PI;

use tokkata_ir::spec::RopeSpec;
use tokkata_ir::{ConstData, ConstId, Pairing};

use super::Resolver;
use crate::error::ArchError;
use crate::schema::Rule;

/// Columns of a head that may be rotated; no head is as wide.
const MAX_COLUMNS: u32 = 1 << 16;

struct Scaling {
    kind: String,
    factor: f64,
    magnitude: f64,
}

impl Resolver<'_> {
    /// The rotation of the current layer, or `None` on a layer without one.
    pub(crate) fn rope(&mut self) -> Result<Option<RopeSpec>, ArchError> {
        let desc = self.desc;
        let rule = &desc.rope;
        let pairing = match self.word(rule.pairing.as_ref(), "none")?.as_str() {
            "adjacent" => Pairing::Adjacent,
            "halves" => Pairing::Halves,
            "none" => return Ok(None),
            other => return Err(self.bad_word("rope.pairing", other)),
        };
        if !self.truth_of(rule.when.as_ref(), "1")? {
            return Ok(None);
        }
        let dims = self.size_of(rule.dims.as_ref(), "n_rot")?;
        if dims == 0 || dims % 2 == 1 || dims > MAX_COLUMNS {
            let what = format!(
                "found {dims} rotated columns, expected an even number from 2 to {MAX_COLUMNS}"
            );
            return Err(ArchError::Rule {
                rule: self.context("rope.dims"),
                what,
            });
        }
        let theta = self.positive(rule.theta.as_ref(), "theta")?;
        let scaling = self.scaling()?;
        let factors = self.factors(dims)?;
        let freqs = self.frequencies(dims, theta, &scaling, factors.as_deref())?;
        let channels = self.channels(dims)?;
        Ok(Some(RopeSpec {
            pairing,
            offset: self.size_of(rule.offset.as_ref(), "0")?,
            freqs: self.constant(ConstData::F32(freqs)),
            magnitude: scaling.magnitude as f32,
            channels,
        }))
    }

    /// A number that is finite and above 0.
    fn positive(&self, rule: Option<&Rule>, usual: &str) -> Result<f64, ArchError> {
        let x = self.number_of(rule, usual)?;
        if x.is_finite() && x > 0.0 {
            return Ok(x);
        }
        Err(ArchError::Rule {
            rule: self.context(rule.map_or(usual, |r| r.0.source())),
            what: format!("found {x}, expected a number above 0"),
        })
    }

    fn scaling(&self) -> Result<Scaling, ArchError> {
        let rule = &self.desc.rope;
        let kind = match self.truth_of(rule.scaled.as_ref(), "1")? {
            true => self.eval(&Rule::of("rope_scaling").0)?,
            false => crate::expr::Val::Text("none".to_owned()),
        };
        let kind = match kind {
            crate::expr::Val::Text(t) => t,
            crate::expr::Val::Num(_) => "none".to_owned(),
        };
        if !matches!(kind.as_str(), "none" | "linear" | "yarn" | "longrope") {
            return Err(self.bad_word("rope.scaling.type", &kind));
        }
        let factor = if kind == "none" {
            1.0
        } else {
            self.positive(None, "rope_factor")?
        };
        let mut magnitude = if kind == "none" {
            1.0
        } else {
            self.number_of(None, "nz(rope.scaling.attn_factor) ?? 1")?
        };
        if kind == "yarn" {
            magnitude *= self.yarn_magnitude(factor)?;
        }
        Ok(Scaling {
            kind,
            factor,
            magnitude,
        })
    }

    /// `mscale(factor, m) / mscale(factor, m_all)` where the file has a multiplier, `mscale(factor, 1)` otherwise.
    fn yarn_magnitude(&self, factor: f64) -> Result<f64, ArchError> {
        let mscale = |m: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * m * factor.ln() + 1.0
            }
        };
        let all = self.number_of(self.desc.rope.log_multiplier.as_ref(), "0")?;
        if all == 0.0 {
            return Ok(mscale(1.0));
        }
        Ok(mscale(self.number_of(self.desc.rope.mscale.as_ref(), "1")?) / mscale(all))
    }

    /// Divisors of the angles: `rope_freqs`, or the long or short table by the context.
    fn factors(&self, dims: u32) -> Result<Option<Vec<f32>>, ArchError> {
        if !self.truth_of(self.desc.rope.factors.as_ref(), "0")? {
            return Ok(None);
        }
        let long = f64::from(self.options.ctx) > self.number_of(None, "n_ctx_orig")?;
        let pair = if long {
            "rope_factors_long.weight"
        } else {
            "rope_factors_short.weight"
        };
        let names = ["rope_factors_long.weight", "rope_factors_short.weight"];
        let paired = names.iter().all(|n| self.view.tensor(n).is_some());
        let name = if paired { pair } else { "rope_freqs.weight" };
        if self.view.tensor(name).is_none() {
            return Ok(None);
        }
        names.iter().for_each(|n| self.mark(n));
        self.mark(name);
        let factors = self.view.floats(name)?;
        if factors.len() < dims as usize / 2 {
            let expected = vec![dims / 2];
            return Err(ArchError::Shape {
                name: name.to_owned(),
                found: vec![factors.len()],
                expected,
            });
        }
        Ok(Some(factors))
    }

    fn frequencies(
        &self,
        dims: u32,
        theta: f64,
        scaling: &Scaling,
        factors: Option<&[f32]>,
    ) -> Result<Vec<f32>, ArchError> {
        let n = f64::from(dims);
        let (low, high) = self.yarn_range(n, theta)?;
        let freq = |i: u32| {
            let plain = theta.powf(-2.0 * f64::from(i) / n)
                / factors.map_or(1.0, |f| f64::from(f[i as usize]));
            let scaled = plain / scaling.factor;
            if scaling.kind != "yarn" {
                return scaled;
            }
            let ramp = 1.0 - ((f64::from(i) - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            scaled * (1.0 - ramp) + plain * ramp
        };
        Ok((0..dims / 2).map(|i| freq(i) as f32).collect())
    }

    /// The pairs between which YaRN blends, as whole numbers unless the file says otherwise.
    fn yarn_range(&self, n: f64, theta: f64) -> Result<(f64, f64), ArchError> {
        let orig = self.number_of(None, "n_ctx_orig ?? 1")?;
        let fast = self.number_of(self.desc.rope.beta_fast.as_ref(), "32")?;
        let slow = self.number_of(self.desc.rope.beta_slow.as_ref(), "1")?;
        let dim = |beta: f64| n * (orig / (beta * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (low, high) = match self.truth_of(None, "rope.scaling.truncate ?? 1")? {
            true => (dim(fast).floor(), dim(slow).ceil()),
            false => (dim(fast), dim(slow)),
        };
        Ok((low.max(0.0), high.min(n - 1.0)))
    }

    /// Position channel of each pair, when the file divides the pairs into sections.
    fn channels(&mut self, dims: u32) -> Result<Option<ConstId>, ArchError> {
        let layout = self.word(self.desc.rope.sections.as_ref(), "none")?;
        let key = format!("{}.rope.dimension_sections", self.prefix);
        let Some(array) = self.meta.array(&key) else {
            return Ok(None);
        };
        if layout == "none" {
            return Ok(None);
        }
        let s: Vec<u32> = (0..4)
            .map(|i| array.get(i).and_then(|v| v.as_uint()).unwrap_or(0) as u32)
            .collect();
        let total: u32 = s.iter().sum();
        if total == 0 {
            return Ok(None);
        }
        let channel = |i: u32| match (layout.as_str(), i % total) {
            ("contiguous", j) if j < s[0] => 0,
            ("contiguous", j) if j < s[0] + s[1] => 1,
            ("contiguous", j) if j < s[0] + s[1] + s[2] => 2,
            ("interleaved", j) if j % 3 == 1 && j < 3 * s[1] => 1,
            ("interleaved", j) if j % 3 == 2 && j < 3 * s[2] => 2,
            ("interleaved", j) if j % 3 == 0 && j < 3 * s[0] => 0,
            _ => 3,
        };
        Ok(Some(self.constant(ConstData::U32(
            (0..dims / 2).map(channel).collect(),
        ))))
    }
}
