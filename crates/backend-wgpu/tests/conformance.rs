//! The op-level suite on the first adapter of this machine, where it has one.

use tokkata_conformance::ops::{Kinds, Subject};
use tokkata_ir::LoadOptions;

fn subject() -> Option<Subject> {
    let device = tokkata_conformance::wgpu();
    let device = device.inspect_err(|why| eprintln!("skipped: wgpu: {why}"));
    Some(Subject::new(Box::new(device.ok()?)))
}

/// Op by op.
fn plain() -> Option<Subject> {
    let subject = subject()?;
    Some(Subject {
        options: LoadOptions {
            no_fuse: true,
            ..LoadOptions::default()
        },
        ..subject
    })
}

fn of(kinds: Kinds) -> Option<Subject> {
    let subject = subject()?;
    Some(Subject { kinds, ..subject })
}

mod own {
    tokkata_conformance::suite!(super::subject());
}

mod prompts {
    tokkata_conformance::suite!(super::of(super::Kinds::Prompts));
}

mod mixed {
    tokkata_conformance::suite!(super::of(super::Kinds::Mixed));
}

mod plain {
    tokkata_conformance::suite!(super::plain());
}
