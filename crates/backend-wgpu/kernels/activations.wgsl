// Functions of an element, by the number that stands at parameter `f`; four numbers of their own follow it.

const F_IDENTITY: u32 = 0u;

// The complementary error function to a part in 10^7 (Numerical Recipes, 6.2).
fn erfc(x: f32) -> f32 {
    let z = abs(x);
    let t = 1.0 / (1.0 + 0.5 * z);
    let series = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807
        + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    let y = t * exp(-z * z + series);
    return select(y, 2.0 - y, x < 0.0);
}

fn activate(f: u32, x: f32) -> f32 {
    switch p(f) {
        case 1u: { return x * sigmoid(x); }
        case 2u: { return 0.5 * x * (1.0 + tanh_of(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
        case 3u: { return 0.5 * x * erfc(x * -0.70710678118654752); }
        case 4u: { return x * sigmoid(1.702 * x); }
        case 5u: { return max(x, 0.0); }
        case 6u: { return max(x, 0.0) * max(x, 0.0); }
        case 7u: { return sigmoid(x); }
        case 8u: { return tanh_of(x); }
        case 9u: { return softplus(x); }
        case 10u: { return exp(x); }
        case 11u: { return -exp(x); }
        case 12u: {
            var curve = (expm1(min(x, pf(f + 4u))) - x) * pf(f + 1u);
            if (x > 0.0) { curve = pf(f + 2u) * x * x; }
            return curve + pf(f + 3u) * x;
        }
        case 13u: { return pf(f + 1u) * tanh_of(x / pf(f + 1u)) * sigmoid(x); }
        case 14u: { return x * sigmoid(pf(f + 1u) * x); }
        case 15u: {
            let root = sqrt(max(abs(x), pf(f + 1u)));
            if (x > 0.0) { return root; }
            if (x < 0.0) { return -root; }
            return 0.0;
        }
        case 16u: { return x * pf(f + 1u) + pf(f + 2u); }
        case 17u: { return pf(f + 1u) * tanh_of(x / pf(f + 1u)); }
        case 18u: { return min(max(x, pf(f + 1u)), pf(f + 2u)); }
        default: { return x; }
    }
}

// A gate times what it gates; how they are clamped stands at parameters `f + 5` and `f + 6`.
fn gated(f: u32, g: f32, u: f32) -> f32 {
    let limit = pf(f + 6u);
    let within = min(max(u, -limit), limit);
    switch p(f + 5u) {
        case 1u: { return activate(f, min(g, limit)) * within; }
        case 2u: { return min(activate(f, g), limit) * within; }
        case 3u: { return activate(f, min(g, limit)) * (within + 1.0); }
        case 4u: { return activate(f, g) * (limit * tanh_of(u / limit)); }
        default: { return activate(f, g) * u; }
    }
}
