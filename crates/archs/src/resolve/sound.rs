//! What an encoder reads in the place of tokens: frames, convolved.

use tokkata_ir::spec::{FrameConv, FramesSpec};
use tokkata_ir::{Axis, Recipe, WeightId};

use super::Resolver;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::FramesRule;

impl Resolver<'_> {
    pub(crate) fn frames(&mut self, rule: &FramesRule) -> Result<FramesSpec, ArchError> {
        let channels = self.size_of(rule.channels.as_ref(), "0")?;
        let (mut convs, mut width) = (Vec::new(), channels);
        for (i, tensor) in rule.convs.iter().enumerate() {
            let stride = self.size_of(rule.strides.get(i), "1")?;
            convs.push(self.frame_conv(tensor, width, stride)?);
            width = self.spec.n_embd;
        }
        let word = self.word(rule.act.as_ref(), "gelu")?;
        let source = format!("rows_global('{}')", rule.positions);
        let rows = self.size_of(None, &source)?;
        let table = Want {
            shape: &[rows, self.spec.n_embd],
            axes: &[Axis::Other, Axis::Embd],
        };
        let positions = self.weight(&rule.positions, table)?;
        Ok(FramesSpec {
            channels,
            convs,
            act: self.act_named(&word)?,
            positions,
            rows,
        })
    }

    /// A convolution of as many outputs as the stream is wide, centred.
    fn frame_conv(
        &mut self,
        tensor: &str,
        channels: u32,
        stride: u32,
    ) -> Result<FrameConv, ArchError> {
        let found = self.find_global(tensor);
        let shape = found.as_ref().map(|f| f.1.clone()).unwrap_or_default();
        let kernel = shape.last().map_or(3, |&k| k as u32);
        let n = self.spec.n_embd;
        if kernel.is_multiple_of(2) || stride == 0 || stride > kernel {
            let what = format!("{kernel} taps and a stride of {stride} cannot be centred");
            return Err(ArchError::Rule {
                rule: self.context(tensor),
                what,
            });
        }
        self.fit(tensor, &[n, channels, kernel])?;
        let stored = Want {
            shape: &[n, channels, kernel],
            axes: &[],
        };
        let stored = self.weight(tensor, stored)?;
        let weight = self.by_taps(stored, channels, kernel);
        let bias = self.bias(tensor, n)?;
        Ok(FrameConv {
            weight,
            bias,
            kernel,
            stride,
            padding: kernel / 2,
        })
    }

    /// Makes `[N, C, kernel]` into `[N, kernel · C]`.
    fn by_taps(&mut self, weight: WeightId, channels: u32, kernel: u32) -> WeightId {
        let def = &mut self.spec.weights[weight.index()];
        let of = std::mem::replace(&mut def.recipe, Recipe::Concat(Vec::new()));
        let turned = Recipe::Transpose {
            of: Box::new(of),
            n: channels,
            k: kernel,
        };
        def.recipe = Recipe::Reshape {
            of: Box::new(turned),
            cols: channels * kernel,
        };
        def.shape = vec![def.shape[0], kernel * channels];
        def.axes.truncate(2);
        weight
    }
}
