//! `kernels`: do the inner loops of the built program keep their sums in registers?
//!
//! Compilers regroup long chains of sums and then run out of registers. So every innermost loop of the kernels that
//! multiplies is disassembled, and the vectors that it stores on the stack are counted. Constants that are read from there
//! cost no more than from elsewhere. A program for 64-bit ARM is read, too, with `aarch64-linux-gnu-objdump`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Instructions that multiply and add.
const PRODUCTS: [&str; 14] = [
    "vpdpbusd",
    "vpmaddubsw",
    "vpmaddwd",
    "vfmadd",
    "vfnmadd",
    "tdpbssd",
    "smlal",
    "smull",
    "sdot",
    "usdot",
    "smmla",
    "usmmla",
    "fmla",
    "fmls",
];
/// Loops with fewer products are not where time goes.
const LEAST_PRODUCTS: usize = 8;
/// Sets by a part of their functions' names; the first that fits counts.
const SETS: [&str; 7] = [
    "avx512bw",
    "avx512",
    "avxvnni",
    "avx2",
    "with_i8mm",
    "with_dotprod",
    "neon",
];

/// One innermost loop.
struct Loop {
    set: &'static str,
    products: usize,
    /// Vectors that it stores on the stack.
    stored: usize,
    instructions: usize,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let usual = || shell::root().join("target/release/tokkata");
    let program = args.first().map_or_else(usual, PathBuf::from);
    let mut objdump = Command::new(objdump(&program)?);
    objdump.args(["-d", "--no-show-raw-insn"]).arg(program);
    let loops = loops(&shell::output(&mut objdump)?);
    if loops.is_empty() {
        bail!("the program has no kernels: is it an optimised build?");
    }
    let mut worst = 0;
    for set in SETS {
        let of_set: Vec<&Loop> = loops.iter().filter(|l| l.set == set).collect();
        let spilling: Vec<&&Loop> = of_set.iter().filter(|l| l.stored > 0).collect();
        if of_set.is_empty() {
            continue;
        }
        println!(
            "{set}: {} loops, {} store vectors on the stack",
            of_set.len(),
            spilling.len()
        );
        for l in &spilling {
            let (products, stored, all) = (l.products, l.stored, l.instructions);
            println!("  {products} products, {stored} stores, {all} instructions");
        }
        worst += spilling.len();
    }
    if worst > 0 {
        bail!("{worst} inner loops keep sums on the stack");
    }
    Ok(())
}

/// The disassembler of what a program was built for.
fn objdump(program: &Path) -> Result<&'static str> {
    const ARM64: [u8; 2] = [0xb7, 0];
    let head = std::fs::read(program).with_context(|| program.display().to_string())?;
    let arm = head.get(18..20) == Some(&ARM64);
    Ok(if arm {
        "aarch64-linux-gnu-objdump"
    } else {
        "objdump"
    })
}

/// The innermost loops of all kernels in a disassembly.
fn loops(text: &str) -> Vec<Loop> {
    let (mut found, mut set, mut body) = (Vec::new(), None, Vec::new());
    for line in text.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|l| l.split_once(" <")) {
            found.extend(set.into_iter().flat_map(|set| innermost(set, &body)));
            set = set_of(name);
            body.clear();
        } else if let Some((address, code)) = line.trim_start().split_once(":\t")
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            body.push((address, code));
        }
    }
    found.extend(set.into_iter().flat_map(|set| innermost(set, &body)));
    found
}

/// The set that a function of the kernels belongs to.
fn set_of(function: &str) -> Option<&'static str> {
    let kernel = ["matmul", "attention"].iter().any(|k| function.contains(k));
    SETS.into_iter()
        .find(|set| kernel && function.contains(set))
}

/// Loops of a function with products that hold no other such loop.
fn innermost(set: &'static str, body: &[(u64, &str)]) -> Vec<Loop> {
    let flow = Flow::of(body);
    let instructions = |blocks: &BTreeSet<usize>| -> Vec<(u64, &str)> {
        let of_block = |&b: &usize| &body[flow.starts[b]..flow.starts[b + 1]];
        blocks.iter().flat_map(of_block).copied().collect()
    };
    let loops = flow.loops().into_iter();
    let multiplies = |l: &BTreeSet<usize>| products(&instructions(l)) >= LEAST_PRODUCTS;
    let loops: Vec<BTreeSet<usize>> = loops.filter(multiplies).collect();
    let inner = loops.iter().filter(|a| {
        let holds = |b: &BTreeSet<usize>| b != *a && b.is_subset(a);
        !loops.iter().any(holds)
    });
    inner.map(|l| count(set, &instructions(l))).collect()
}

/// The runs of instructions of a function and where each goes on. Addresses alone do not tell loops: parts of one may lie
/// before its first instruction, and what leads into it between them.
struct Flow {
    /// First instruction of each block; one past the last at the end.
    starts: Vec<usize>,
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
}

impl Flow {
    fn of(body: &[(u64, &str)]) -> Self {
        let places: BTreeMap<u64, usize> = body.iter().enumerate().map(|(i, b)| (b.0, i)).collect();
        let target = |code: &str| {
            // The address stands before the name of what lies there.
            let address = code.split(" <").next()?.split_whitespace().last()?;
            let address = u64::from_str_radix(address, 16).ok()?;
            jumps(code).then_some(places.get(&address).copied())?
        };
        let ends = |code: &str| jumps(code) || code.starts_with("ret");
        let mut starts = BTreeSet::from([0, body.len()]);
        for (i, (_, code)) in body.iter().enumerate().filter(|(_, b)| ends(b.1)) {
            starts.insert(i + 1);
            starts.extend(target(code));
        }
        let starts: Vec<usize> = starts.into_iter().collect();
        let blocks = starts.len() - 1;
        let (mut after, mut before) = (vec![Vec::new(); blocks], vec![Vec::new(); blocks]);
        for b in 0..blocks {
            let code = body[starts[b + 1] - 1].1;
            let goes_on = !["jmp", "ret", "b\t", "br\t"]
                .iter()
                .any(|end| code.starts_with(end));
            let next = goes_on.then_some(starts[b + 1]);
            for to in target(code).into_iter().chain(next) {
                let Ok(to) = starts[..blocks].binary_search(&to) else {
                    continue;
                };
                after[b].push(to);
                before[to].push(b);
            }
        }
        Flow {
            starts,
            after,
            before,
        }
    }

    /// Blocks of each loop: what leads from its first block back to it.
    fn loops(&self) -> Vec<BTreeSet<usize>> {
        let all = reached(&self.after, [0], None);
        let mut loops = Vec::new();
        for &head in &all {
            // All ways to the loop's other blocks lead over its first.
            let others = reached(&self.after, [0], Some(head));
            let back = self.before[head].iter().copied();
            let back: Vec<usize> = back
                .filter(|b| all.contains(b) && (*b == head || !others.contains(b)))
                .collect();
            if !back.is_empty() {
                let mut blocks = reached(&self.before, back, Some(head));
                blocks.insert(head);
                blocks.retain(|b| all.contains(b));
                loops.push(blocks);
            }
        }
        loops
    }
}

/// Whether an instruction goes elsewhere in its function.
fn jumps(code: &str) -> bool {
    let name = code.split_whitespace().next().unwrap_or_default();
    let arm = ["b", "br", "cbz", "cbnz", "tbz", "tbnz"];
    name.starts_with('j') || name.starts_with("b.") || arm.contains(&name)
}

/// What is reached from some blocks, never over `without`.
fn reached(
    next: &[Vec<usize>],
    from: impl IntoIterator<Item = usize>,
    without: Option<usize>,
) -> BTreeSet<usize> {
    let (mut seen, mut left) = (BTreeSet::new(), Vec::from_iter(from));
    while let Some(block) = left.pop() {
        if Some(block) != without && seen.insert(block) {
            left.extend(&next[block]);
        }
    }
    seen
}

fn products(body: &[(u64, &str)]) -> usize {
    let is_product = |code: &str| {
        // Disassemblers say which of two encodings an instruction has.
        let code = code.strip_prefix("{vex} ").unwrap_or(code);
        PRODUCTS.iter().any(|p| code.starts_with(p))
    };
    body.iter().filter(|b| is_product(b.1)).count()
}

fn count(set: &'static str, body: &[(u64, &str)]) -> Loop {
    let is_vector = |code: &str| code.contains("ymm") || code.contains("zmm");
    // Vectors are aligned on the stack and so reached from its pointer; the frame's register may hold any address.
    // What an instruction writes comes last.
    let stores =
        |code: &str| is_vector(code) && code.trim_end().ends_with("(%rsp)") || stores_on_arm(code);
    Loop {
        set,
        products: products(body),
        stored: body.iter().filter(|b| stores(b.1)).count(),
        instructions: body.len(),
    }
}

/// Whether an instruction of 64-bit ARM stores whole vectors on the stack.
fn stores_on_arm(code: &str) -> bool {
    let mut parts = code.split_whitespace();
    let stores = matches!(parts.next(), Some("str" | "stp" | "stur"));
    let vector = parts.next().is_some_and(|v| v.starts_with('q'));
    stores && vector && code.contains("[sp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(function: &str, product: &str) -> String {
        let mut text = format!("0000000000000010 <{function}>:\n");
        text += "  10:\txor    %eax,%eax\n";
        for i in 0..LEAST_PRODUCTS {
            text += &format!("  {:x}:\t{product}\n", 0x20 + i);
        }
        text += "  3e:\tprefetcht1 (%rax)\n  3f:\tjne    3e <x>\n";
        text += "  40:\tvmovaps %zmm3,0x40(%rsp)\n  41:\tmov    %rax,0x8(%rsp)\n";
        text += "  42:\tvaddps 0x40(%rsp),%zmm1,%zmm1\n";
        text += "  43:\tjne    20 <x+0x10>\n";
        text += "  44:\tjne    10 <x>\n";
        text += "0000000000000050 <main>:\n  50:\tret\n";
        text
    }

    #[test]
    fn loops_are_found_and_vectors_stored_on_the_stack_counted() {
        let found = |function: &str, product: &str| {
            let loops = loops(&listing(function, product));
            assert_eq!(loops.len(), 1);
            (
                loops[0].set,
                loops[0].products,
                loops[0].stored,
                loops[0].instructions,
            )
        };
        let (vnni, all) = ("vpdpbusd %zmm1,%zmm2,%zmm3", LEAST_PRODUCTS + 6);
        assert_eq!(
            found("_ZN6matmul6avx5127avx5127h0E", vnni),
            ("avx512", LEAST_PRODUCTS, 1, all)
        );
        let vex = "{vex} vpdpbusd %ymm1,%ymm2,%ymm3";
        assert_eq!(
            found("_ZN6matmul4avx212with_avxvnni17h0E", vex),
            ("avxvnni", LEAST_PRODUCTS, 1, all)
        );
    }

    #[test]
    fn loops_for_arm_are_found_too() {
        let mut text = "0000000000000010 <_ZN6matmul4neon9with_i8mm17h0E>:\n".to_owned();
        text += "  10:\tcbz\tx0, 44 <x+0x34>\n";
        for i in 0..LEAST_PRODUCTS {
            text += &format!("  {:x}:\tsmmla\tv0.4s, v1.16b, v2.16b\n", 0x20 + 4 * i);
        }
        text += "  40:\tstr\tq0, [sp, #16]\n  41:\tstr\tx0, [sp, #32]\n  42:\tstr\tq0, [x1]\n";
        text += "  43:\tb.ne\t20 <x+0x10>  // b.any\n  44:\tret\n";
        let loops = loops(&text);
        assert_eq!(loops.len(), 1);
        assert_eq!(
            (loops[0].set, loops[0].products, loops[0].stored),
            ("with_i8mm", LEAST_PRODUCTS, 1)
        );
        assert_eq!(loops[0].instructions, LEAST_PRODUCTS + 4);
    }

    #[test]
    fn what_lies_between_the_parts_of_a_loop_is_not_in_it() {
        let mut text = "0000000000000010 <_ZN6matmul4avx2>:\n  10:\tjmp    13 <x+0x3>\n".to_owned();
        text += "  11:\tdec    %eax\n  12:\tjne    20 <x+0x10>\n";
        text += "  13:\tvmovaps %ymm3,0x40(%rsp)\n";
        for i in 0..LEAST_PRODUCTS {
            text += &format!("  {:x}:\tvpmaddwd %ymm1,%ymm2,%ymm3\n", 0x20 + i);
        }
        text += "  30:\tjne    11 <x+0x1>\n  31:\tret\n";
        let loops = loops(&text);
        assert_eq!(loops.len(), 1);
        assert_eq!(
            (loops[0].stored, loops[0].instructions),
            (0, LEAST_PRODUCTS + 3)
        );
    }
}
