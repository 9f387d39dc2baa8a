// model.py once more: the same network with the same weights, and how it writes. The letters of shapes are the same too:
// S slots, C = n_embd, D = C / n_head, V words; n rows, m columns. A matrix is one Float64Array, row after row.

/** x (n, C) · Wᵀ, of W (m, C): (n, m). Two columns and four rows go together, because each number that is read then
 *  serves several sums. At an edge the last column or row is done once more. */
function linear(x, W, C) {
  const n = x.length / C, m = W.length / C, y = new Float64Array(n * m);
  for (let a = 0; a < m; a += 2) {
    const b = Math.min(a + 1, m - 1);
    for (let r0 = 0; r0 < n; r0 += 4) {
      const r1 = Math.min(r0 + 1, n - 1), r2 = Math.min(r0 + 2, n - 1), r3 = Math.min(r0 + 3, n - 1);
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      for (let c = 0; c < C; c++) {
        const wa = W[a * C + c], wb = W[b * C + c];
        const x0 = x[r0 * C + c], x1 = x[r1 * C + c], x2 = x[r2 * C + c], x3 = x[r3 * C + c];
        a0 += wa * x0; a1 += wa * x1; a2 += wa * x2; a3 += wa * x3;
        b0 += wb * x0; b1 += wb * x1; b2 += wb * x2; b3 += wb * x3;
      }
      y[r0 * m + a] = a0; y[r1 * m + a] = a1; y[r2 * m + a] = a2; y[r3 * m + a] = a3;
      y[r0 * m + b] = b0; y[r1 * m + b] = b1; y[r2 * m + b] = b2; y[r3 * m + b] = b3;
    }
  }
  return y;
}

/** f(row, column) of n rows and m columns, as a matrix (n, m). */
function matrix(n, m, f) {
  const y = new Float64Array(n * m);
  for (let i = 0, r = 0; r < n; r++)
    for (let c = 0; c < m; c++) y[i++] = f(r, c);
  return y;
}

const sum = (x, y) => matrix(1, x.length, (_, i) => x[i] + y[i]);
const rowsOf = (x, rows, C) => matrix(rows.length, C, (r, c) => x[rows[r] * C + c]);

/** RMSNorm of each row of x (n, C), with the gain (C,). */
function norm(x, gain) {
  const C = gain.length, squares = new Float64Array(x.length / C);
  for (let i = 0; i < x.length; i++) squares[Math.floor(i / C)] += x[i] * x[i];
  return matrix(squares.length, C, (r, c) => x[r * C + c] / Math.sqrt(squares[r] / C + 1e-6) * gain[c]);
}

/** The softmax of each row of logits (n, m); in a causal one row r has but the columns 0 to r. */
function softmax(logits, m, causal = false) {
  const p = new Float64Array(logits.length);
  for (let row = 0; row < p.length; row += m) {
    const end = row + (causal ? row / m + 1 : m);
    let total = 0;
    for (let i = row; i < end; i++) total += p[i] = Math.exp(logits[i]);
    for (let i = row; i < end; i++) p[i] /= total;
  }
  return p;
}

/** Rotary embedding: turns C columns of x (S, m), from `first` on, by angles that grow with the position (S,). */
function rotate(x, m, first, C, D, position) {
  for (let s = 0; s < position.length; s++)
    for (let d = 0; d < D / 2; d++) {
      const angle = position[s] * 10000 ** (-2 * d / D), cos = Math.cos(angle), sin = Math.sin(angle);
      for (let i = s * m + first + d, j = i + D / 2; i < s * m + first + C; i += D, j += D)
        [x[i], x[j]] = [x[i] * cos - x[j] * sin, x[i] * sin + x[j] * cos];
    }
}

/** The weights that page.py wrote, base64 of float16. */
function decode(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length).map((_, i) => letters.charCodeAt(i));
  return new Float64Array(new Uint16Array(bytes.buffer)).map(half => {
    const sign = half >> 15 ? -1 : 1, exponent = half >> 10 & 31, fraction = half & 1023;
    return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  });
}

class Network {
  constructor({config, weights}) {
    Object.assign(this, config);        // the fields of model.py's Config
    this.W = Object.fromEntries(Object.entries(weights).map(([name, w]) => [name, decode(w)]));
  }

  /** softmax(q kᵀ / √D) v of each head. A GPT's slot does not see those after it. */
  attention(x, w, targetPos, keyPos) {
    const C = this.n_embd, D = C / this.n_head, S = keyPos.length, y = new Float64Array(S * C);
    const qkv = linear(x, w("attention.qkv"), C);                                               // (S, 3C)
    rotate(qkv, 3 * C, 0, C, D, targetPos);
    rotate(qkv, 3 * C, C, C, D, keyPos);
    for (let head = 0; head < C; head += D) {
      const q = matrix(S, D, (s, d) => qkv[s * 3 * C + head + d] / Math.sqrt(D));               // (S, D)
      const k = matrix(S, D, (s, d) => qkv[s * 3 * C + C + head + d]);                          // (S, D)
      const v = matrix(D, S, (d, s) => qkv[s * 3 * C + 2 * C + head + d]);                      // (D, S)
      const seen = linear(softmax(linear(q, k, D), S, this.mode == "ar"), v, S);                // (S, D)
      for (let s = 0; s < S; s++) y.set(seen.subarray(s * D, s * D + D), s * C + head);
    }
    return linear(y, w("attention.proj"), C);                                                   // (S, C)
  }

  /** SwiGLU: proj(silu(gate(x)) · up(x)), of x (n, C). */
  mlp(x, w) {
    const C = this.n_embd, H = this.n_hidden, both = linear(x, w("mlp.gate_up"), C);            // (n, 2H)
    const silu = gate => gate / (1 + Math.exp(-gate)), row = r => r * 2 * H;
    const hidden = matrix(x.length / C, H, (r, h) => silu(both[row(r) + h]) * both[row(r) + H + h]);
    return linear(hidden, w("mlp.proj"), H);                                                    // (n, C)
  }

  /** Logits (n, V) of what the n slots of `select` predict. */
  forward(tokens, keyPos, targetPos, select) {
    const C = this.n_embd, W = name => this.W[`${name}.weight`];
    const targets = rowsOf(W("embed_target"), targetPos.map(position => Math.max(position, 0)), C);
    let x = sum(rowsOf(W("embed"), tokens, C), targets);                                        // (S, C)
    for (let layer = 0; layer < this.n_layer; layer++) {
      const w = name => W(`blocks.${layer}.${name}`);
      x = sum(x, this.attention(norm(x, w("norm1")), w, targetPos, keyPos));                     // (S, C)
      if (layer == this.n_layer - 1) x = rowsOf(x, select, C);                                  // (n, C)
      x = sum(x, this.mlp(norm(x, w("norm2")), w));
    }
    return linear(norm(x, W("norm")), W("embed").subarray(0, this.vocab_size * C), C);          // (n, V)
  }

  /** {gap: logits (V,)} of a text, which has -1 in its gaps. Masked diffusion predicts all of them, a GPT the first. The
   *  slots are those of the table in model.py. */
  logits(text) {
    const V = this.vocab_size, ar = this.mode == "ar", hidden = [...text.keys()].filter(i => text[i] < 0);
    if (!hidden.length) return new Map();
    const targets = ar ? hidden.slice(0, 1) : hidden, held = ar ? text.slice(0, hidden[0]) : text;
    const tokens = [this.bos_id, ...held.map(token => token < 0 ? this.mask_id : token)];
    const keyPos = tokens.map((_, slot) => slot - 1), targetPos = ar ? tokens.map((_, slot) => slot) : keyPos;
    const logits = this.forward(tokens, keyPos, targetPos, targets.map(i => targetPos.indexOf(i)));
    return new Map(targets.map((gap, i) => [gap, logits.subarray(i * V, i * V + V)]));
  }
}

/** Nats of a law (V,): 0 if it is sure of a word. */
const entropy = p => p.reduce((nats, share) => nats - (share && share * Math.log(share)), 0);

/** A word drawn from a law (V,) by a number u from 0 to 1; by 1 it is the likeliest. */
function draw(p, u) {
  const word = u < 1 ? p.findIndex(share => (u -= share) < 0) : -1;
  return word < 0 ? p.indexOf(p.reduce((a, b) => Math.max(a, b))) : word;
}

/** The gaps that a pass writes, of those that have a law. `when` has random times. "sure" is samplers/adaptive.py: a gap
 *  is written if the entropies of all surer ones sum to at most the dial, in nats. "several" writes as many as the dial
 *  says, the other ways one. */
function chosen(laws, way, dial, when) {
  const nats = new Map([...laws].map(([i, p]) => [i, entropy(p)]));
  const rank = {left: i => i, random: i => when[i], several: i => when[i]}[way] || (i => nats.get(i));
  const ranked = [...laws.keys()].sort((a, b) => rank(a) - rank(b));
  if (way != "sure") return ranked.slice(0, way == "several" ? dial : 1);
  let surer = 0;
  return ranked.filter((_, n) => (surer += nats.get(ranked[n - 1]) ?? 0) <= dial);
}
