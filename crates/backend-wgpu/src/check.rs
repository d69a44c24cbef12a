//! What is tried before an adapter is trusted: a small layer, held against the reference interpreter. A class of kernels that
//! computes it wrongly is replaced by its plain form and named.

mod layer;

use tokkata_backend_ref::RefBackend;
use tokkata_ir::Device;

use crate::choices::Choices;
use crate::device::WgpuDevice;
use crate::gpu::Abilities;

/// Squared error that a right result may have, of all squares.
const MOST_ERROR: f64 = 1e-6;
/// The same of the layer where rows of its prompt are halves, as are weights: rounding both makes 1.3e-6.
const MOST_ERROR_OF_HALVES: f64 = 4e-6;

/// A class of kernels that has a plain form.
struct Class {
    name: &'static str,
    set: fn(&mut Abilities, bool),
    /// Others that it is built on.
    needs: &'static [&'static str],
}

const CLASSES: [Class; 13] = [
    Class {
        name: "subgroups",
        set: |a, on| a.subgroups = on,
        needs: &[],
    },
    Class {
        name: "vectors of words",
        set: |a, on| a.fours = on,
        needs: &[],
    },
    Class {
        name: "tiles",
        set: |a, on| a.tiles = on,
        needs: &[],
    },
    Class {
        name: "cooperative matrices",
        set: |a, on| a.matrices = on,
        needs: &["tiles"],
    },
    Class {
        name: "replayed steps",
        set: |a, on| a.replays = on,
        needs: &[],
    },
    Class {
        name: "fused products",
        set: |a, on| a.products = on,
        needs: &[],
    },
    Class {
        name: "the driver's halves",
        set: |a, on| a.halves = on,
        needs: &["fused products"],
    },
    Class {
        name: "dots of bytes",
        set: |a, on| a.dots = on,
        needs: &["fused products"],
    },
    Class {
        name: "rows of integers",
        set: |a, on| a.integers = on,
        needs: &["fused products", "dots of bytes"],
    },
    Class {
        name: "more shared memory",
        set: |a, on| a.shares_more = on,
        needs: &["fused products"],
    },
    Class {
        name: "attention of shared keys",
        set: |a, on| a.attend = on,
        needs: &[],
    },
    Class {
        name: "attention of prompts",
        set: |a, on| a.attend_prompts = on,
        needs: &["attention of shared keys"],
    },
    Class {
        name: "attention with heads",
        set: |a, on| a.turning = on,
        needs: &["attention of shared keys"],
    },
];

fn class(name: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|c| c.name == name)
}

/// Plain forms, but for a class and what it needs.
fn only(class_of: &Class) -> Abilities {
    let mut abilities = Abilities::PLAIN;
    let needs = class_of.needs.iter().filter_map(|n| class(n));
    for class in needs.chain([class_of]) {
        (class.set)(&mut abilities, true);
    }
    abilities
}

/// The squared errors of a device in what is tried, of all squares: of the layer, and of wide rows.
fn errors(device: &dyn Device, want: &[Vec<f32>]) -> Result<Vec<f64>, String> {
    let found = layer::outputs(device).map_err(|e| e.to_string())?;
    let of = |(want, found): (&Vec<f32>, &Vec<f32>)| {
        let square = |x: f32| f64::from(x).powi(2);
        let error: f64 = want.iter().zip(found).map(|(a, b)| square(a - b)).sum();
        error / want.iter().map(|&x| square(x)).sum::<f64>()
    };
    let errors = want.iter().zip(&found).map(of);
    let large = |error: f64| if error.is_nan() { f64::INFINITY } else { error };
    Ok(errors.map(large).collect())
}

/// What the reference makes of it.
fn wanted() -> Result<Vec<Vec<f32>>, String> {
    layer::outputs(&RefBackend::default()).map_err(|e| e.to_string())
}

fn is_near(device: &WgpuDevice, want: &[Vec<f32>]) -> bool {
    let layer = match device.halves_prompts() {
        true => MOST_ERROR_OF_HALVES,
        false => MOST_ERROR,
    };
    let fits = |errors: Vec<f64>| {
        errors
            .iter()
            .zip([layer, MOST_ERROR])
            .all(|(e, most)| *e < most)
    };
    errors(device, want).is_ok_and(fits)
}

/// Whether the layer is computed rightly, as kernels are chosen now.
pub(crate) fn is_right(device: &WgpuDevice) -> bool {
    wanted().is_ok_and(|want| is_near(device, &want))
}

/// The classes that are used.
fn used(abilities: Abilities) -> impl Iterator<Item = &'static Class> {
    let used = move |class: &&Class| {
        let mut without = abilities;
        (class.set)(&mut without, false);
        without != abilities
    };
    CLASSES.iter().filter(used)
}

/// Their names.
pub(crate) fn names(abilities: Abilities) -> impl Iterator<Item = &'static str> {
    used(abilities).map(|class| class.name)
}

/// The classes that compute the layer wrongly; none is used any more.
///
/// # Errors
/// One line, where plain forms are wrong too.
pub(crate) fn check(device: &mut WgpuDevice) -> Result<Vec<&'static str>, String> {
    // However few weights there are, and tiles: two are tall, one is not.
    let choices = device.choices;
    device.choices = Choices {
        weights: 0,
        tiles: 2,
        ..choices
    };
    let found = wrong(device);
    device.choices = choices;
    found
}

fn wrong(device: &mut WgpuDevice) -> Result<Vec<&'static str>, String> {
    let want = wanted()?;
    let is_right = |device: &WgpuDevice| is_near(device, &want);
    if is_right(device) {
        return Ok(Vec::new());
    }
    let had = device.abilities;
    device.abilities = Abilities::PLAIN;
    if !is_right(device) {
        device.abilities = had;
        return Err(match errors(device, &want) {
            Ok(_) => "its driver computes wrongly".to_owned(),
            Err(why) => why,
        });
    }
    let mut wrong = Vec::new();
    for class in used(had) {
        device.abilities = only(class);
        let named = class.needs.iter().any(|n| wrong.contains(n));
        if named || !is_right(device) {
            wrong.push(class.name);
        }
    }
    device.abilities = had;
    restrict(device, &wrong);
    if !is_right(device) {
        // None is wrong alone.
        wrong = CLASSES.iter().map(|c| c.name).collect();
        restrict(device, &wrong);
    }
    Ok(wrong)
}

/// Leaves classes out; gives how many of them there are.
pub(crate) fn restrict<T: AsRef<str>>(device: &mut WgpuDevice, names: &[T]) -> usize {
    let known = names.iter().filter_map(|n| class(n.as_ref()));
    known
        .map(|class| (class.set)(&mut device.abilities, false))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that lies is found, named and replaced; others stay.
    #[test]
    fn a_wrong_class_is_named_and_replaced() {
        let mut device = match WgpuDevice::open(0) {
            Ok(device) => device,
            Err(why) => return eprintln!("skipped: wgpu: {why}"),
        };
        assert_eq!(device.check(), Ok(Vec::new()));
        let mut device = WgpuDevice::open(0).expect("an adapter");
        device.break_kernels(
            "query[h * FOURS_K + lane] = query_turned;",
            "query[h * FOURS_K + lane] = y;",
        );
        let had = device.abilities;
        let named = device.check().expect("plain forms are right");
        assert_eq!(named, ["attention with heads"]);
        assert!(had.turning && !device.abilities.turning);
        let mut several = WgpuDevice::open(0).expect("an adapter");
        several.break_kernels("let g = begin + lane;", "let g = lane;");
        assert_eq!(several.check(), Ok(vec!["rows of integers".to_owned()]));
        // Two tiles of the layer are tall.
        let mut tall = WgpuDevice::open(0).expect("an adapter");
        if tall.halves_prompts() {
            tall.break_tall_tiles();
            assert_eq!(tall.check(), Ok(vec!["cooperative matrices".to_owned()]));
        }
        let mut other = WgpuDevice::open(0).expect("an adapter");
        other.leave_out(named);
        assert_eq!(other.abilities, device.abilities);
        assert_eq!(other.notes().len(), 1);
        // What all forms share has no other.
        let mut device = WgpuDevice::open(0).expect("an adapter");
        device.break_kernels("{ return 1.0 / (1.0 + exp(-x)); }", "{ return 1.0; }");
        assert_eq!(
            device.check(),
            Err("its driver computes wrongly".to_owned())
        );
    }
}
