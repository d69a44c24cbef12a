//! A model whose layers lie on two devices writes what it writes on one.

use crate::common::{golden, options};
use tokkata::placement::{GpuLayers, Placement};
use tokkata::{Checkpoint, EventKind, Model, OpenOptions};
use tokkata_conformance::generate;

/// What a golden's model writes in this way, and what it says of itself.
fn written(name: &str, options: &OpenOptions) -> (Vec<u32>, &'static str, Vec<String>) {
    let file = generate::model(&golden(name)).expect("a file");
    let checkpoint = Checkpoint::new(file, &[]).expect("a model");
    let mut model = Model::load(checkpoint, options, None).expect("it loads");
    let mut request = model.prompted(vec![3, 8, 1, 9, 3, 8]);
    request.stop.max_tokens = Some(24);
    let events = model.generate(request, None).expect("an answer");
    let tokens = events.filter_map(|event| match event {
        Ok(EventKind::Token { id, .. }) => Some(id),
        _ => None,
    });
    let tokens = tokens.collect();
    (tokens, model.device(), model.notes().to_vec())
}

#[test]
fn layers_and_experts_beside_the_processor_change_no_token() {
    let on = |device: &str, placement: Placement| OpenOptions {
        device: Some(device.to_owned()),
        placement,
        ..options()
    };
    let layers = |n| Placement {
        layers: GpuLayers::Count(n),
        ..Placement::default()
    };
    for name in ["llama", "qwen3moe"] {
        let (want, device, notes) = written(name, &on("cpu", layers(2)));
        assert_eq!((device, notes), ("cpu", Vec::new()));
        assert_eq!(want.len(), 24);
        let experts = Placement {
            cpu_experts: 1,
            ..layers(2)
        };
        let (got, device, notes) = written(name, &on("cpu", experts));
        assert_eq!((got, device, notes.len()), (want.clone(), "cpu", 1));
        assert!(notes[0].contains("changes nothing"), "{notes:?}");
        let (got, device, notes) = written(name, &on("ref", layers(3)));
        assert_eq!((&got, device), (&want, "composite"), "{name}");
        let begins = "ref has 3 of 4 layers, with ";
        assert!(notes[0].starts_with(begins), "{notes:?}");
        assert!(notes[0].contains("the processor has 1, with "), "{notes:?}");
        // Nothing is left for the device.
        let (got, device, notes) = written(name, &on("ref", layers(0)));
        assert_eq!((got, device, notes), (want.clone(), "cpu", Vec::new()));
    }
    let experts = Placement {
        cpu_experts: 2,
        ..Placement::default()
    };
    let (want, ..) = written("qwen3moe", &on("ref", Placement::default()));
    let (got, device, notes) = written("qwen3moe", &on("ref", experts));
    assert_eq!((got, device), (want, "composite"));
    let begins = "ref has 2 of 4 layers, and parts of 2, with ";
    assert!(notes[0].starts_with(begins), "{notes:?}");
}
