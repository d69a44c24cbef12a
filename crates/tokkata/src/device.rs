//! The backends that are built in, by name.

use tokkata_ir::Device;

use crate::error::{Error, Result};

type Make = fn() -> Box<dyn Device>;

/// Name, what it is, and how to make it; the first is the default.
const DEVICES: &[(&str, &str, Make)] = &[
    ("cpu", "this machine's processor", || {
        Box::new(tokkata_backend_cpu::CpuBackend)
    }),
    ("ref", "the scalar reference interpreter, slow", || {
        Box::new(tokkata_backend_ref::RefBackend::default())
    }),
];

/// Names and descriptions of the devices, the default first.
pub fn devices() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEVICES.iter().map(|d| (d.0, d.1))
}

/// The device called `name`, or the default.
///
/// # Errors
/// [`Error::Device`] lists the known names.
pub fn device(name: Option<&str>) -> Result<Box<dyn Device>> {
    let wanted = name.unwrap_or(DEVICES[0].0);
    match DEVICES.iter().find(|d| d.0 == wanted) {
        Some((_, _, make)) => Ok(make()),
        None => {
            let names: Vec<&str> = DEVICES.iter().map(|d| d.0).collect();
            Err(Error::Device {
                found: wanted.to_owned(),
                known: names.join(", "),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name() {
        for (name, _) in devices() {
            assert_eq!(device(Some(name)).unwrap().name(), name);
        }
        let error = device(Some("tpu")).err().unwrap().to_string();
        assert_eq!(error, "found device 'tpu', expected one of cpu, ref");
    }
}
