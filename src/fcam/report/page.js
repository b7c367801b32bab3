// The gallery: cards are made and pictures decoded as they come into sight; the slider redraws those in sight.
"use strict";
(() => {
  const PAGE = 48;
  const KEPT = 600;
  const SCALE = 3;
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const all = read("gallery-index");
  const { side, steps, chunk } = all;
  const heat = bytes(all.colors);
  const section = byId("gallery");
  const overlaps = all.galleries.map((g) => Object.fromEntries(g.kinds.map((k) => [k, bytes(g.overlap[k])])));

  let run = 0;
  let kind = "";
  let step = 0;
  let order = [];
  let shown = 0;
  let palette = {};
  const chunks = new Map();
  const decoded = new Map();
  const inSight = new Set();
  const here = () => all.galleries[run];
  const chosen = () => Math.min(steps - 1, Math.round(here().thresholds[kind] * steps));
  const overlapOf = (place) => overlaps[run][kind][place * steps + step] / 200;

  function option(select, value, text) {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    select.append(made);
  }

  // A chunk's text is parsed once and forgotten; its pictures stay as base64 until a card asks for them.
  function picturesOf(place) {
    const id = `gallery-${run}-${Math.floor(place / chunk)}`;
    if (!chunks.has(id)) chunks.set(id, read(id));
    return chunks.get(id)[place % chunk];
  }

  async function image(data) {
    const made = new Image();
    made.src = `data:image/webp;base64,${data}`;
    await made.decode();
    return made;
  }

  async function levels(data) {
    const picture = await image(data);
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(picture, 0, 0);
    const colors = context.getImageData(0, 0, side, side).data;
    return Uint8Array.from({ length: side * side }, (_, i) => colors[4 * i]);
  }

  async function decode(place) {
    const key = `${run}-${place}`;
    if (!decoded.has(key)) {
      const [photo, mask, ...maps] = picturesOf(place);
      const kinds = here().kinds;
      const work = [image(photo), mask ? levels(mask) : null, ...maps.map(levels)];
      decoded.set(key, Promise.all(work).then(([p, m, ...own]) => ({
        photo: p, mask: m, maps: Object.fromEntries(kinds.map((k, i) => [k, own[i]])),
      })));
      if (decoded.size > KEPT) decoded.delete(decoded.keys().next().value);
    }
    return decoded.get(key);
  }

  // Boxes cut at a share of the map's maximum, masks at the value itself: the rules of the two metrics.
  function cut(map) {
    const top = map.reduce((a, b) => Math.max(a, b), 0);
    const tau = step / steps;
    const limit = here().measure === "box" ? Math.floor(tau * top) : tau * 255 - 1e-6;
    return Uint8Array.from(map, (v) => (here().measure === "box" ? v > limit : v >= limit) ? 1 : 0);
  }

  // Box [x0, y0, x1, y1] around the 8-connected part with most pixels, x1 and y1 one past the last; null if empty.
  function largestBox(mask) {
    const seen = new Uint8Array(mask.length);
    const stack = new Int32Array(mask.length);
    let best = null;
    let most = 0;
    for (let start = 0; start < mask.length; start++) {
      if (!mask[start] || seen[start]) continue;
      let size = 0, filled = 0, x0 = side, y0 = side, x1 = 0, y1 = 0;
      stack[filled++] = start;
      seen[start] = 1;
      while (filled) {
        const at = stack[--filled];
        const x = at % side, y = (at - x) / side;
        size++;
        x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
        for (let v = Math.max(0, y - 1); v <= Math.min(side - 1, y + 1); v++) {
          for (let u = Math.max(0, x - 1); u <= Math.min(side - 1, x + 1); u++) {
            const next = v * side + u;
            if (mask[next] && !seen[next]) { seen[next] = 1; stack[filled++] = next; }
          }
        }
      }
      if (size > most) { most = size; best = [x0, y0, x1 + 1, y1 + 1]; }
    }
    return best;
  }

  function readPalette() {
    const style = getComputedStyle(section);
    for (const name of ["tp", "fn", "fp", "found", "truth"]) {
      const hex = style.getPropertyValue(`--${name}`).trim();
      palette[name] = { hex, rgb: [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)) };
    }
  }

  function tint(context, color) {
    const layer = document.createElement("canvas");
    layer.width = layer.height = side;
    const own = layer.getContext("2d");
    const pixels = own.createImageData(side, side);
    for (let i = 0; i < side * side; i++) pixels.data.set(color(i), 4 * i);
    own.putImageData(pixels, 0, 0);
    context.drawImage(layer, 0, 0, side * SCALE, side * SCALE);
  }

  function frame(context, [x0, y0, x1, y1], color, dashes) {
    const place = [x0 + 2, y0 + 2, x1 - x0 - 4, y1 - y0 - 4];
    for (const [ink, width, pattern] of [["#000c", 6, []], [color, 3.5, dashes]]) {
      context.setLineDash(pattern);
      context.lineWidth = width;
      context.strokeStyle = ink;
      context.strokeRect(...place);
    }
  }

  async function draw(card) {
    const place = Number(card.dataset.place);
    const token = (card.dataset.drawn = `${run} ${kind} ${step} ${byId("view").value} ${byId("safe").checked}`);
    const found = await decode(place);
    if (card.dataset.drawn !== token) return;
    const gallery = here();
    const context = card.querySelector("canvas").getContext("2d");
    const view = byId("view").value;
    context.setLineDash([]);
    context.drawImage(found.photo, 0, 0, side * SCALE, side * SCALE);
    const map = found.maps[kind];
    let text = "";
    if (view === "heat") {
      tint(context, (i) => [heat[3 * map[i]], heat[3 * map[i] + 1], heat[3 * map[i] + 2], Math.min(200, map[i])]);
    } else if (view === "cut") {
      const mask = cut(map);
      const truth = found.mask;
      tint(context, (i) => {
        const real = truth ? truth[i] === 255 : mask[i];
        if (truth && truth[i] === 128) return [0, 0, 0, 0];
        const name = mask[i] ? (real ? "tp" : "fp") : real ? "fn" : "";
        return name ? [...palette[name].rgb, 120] : [0, 0, 0, 0];
      });
      for (const box of gallery.boxes[place]) frame(context, box.map((v) => (v * side * SCALE) / 1000), palette.truth.hex, [9, 6]);
      const box = largestBox(mask);
      if (box) frame(context, box.map((v) => v * SCALE), palette.found.hex, []);
      card.dataset.box = box ? box.join(" ") : "";
      card.dataset.pixels = mask.reduce((a, b) => a + b, 0);
      text = box ? `, predicted box ${box.map((v) => Math.round((100 * v) / side)).join(", ")} in percent` : ", nothing found";
    }
    caption(card, place);
    card.querySelector("canvas").setAttribute("aria-label", card.querySelector("figcaption").textContent + text);
  }

  function caption(card, place) {
    const gallery = here();
    const name = document.createElement("b");
    const value = gallery.counted[place] ? overlapOf(place).toFixed(2) : "no truth";
    name.textContent = value;
    card.dataset.overlap = value;
    const label = gallery.classes[gallery.labels[place]];
    const guess = gallery.classes[gallery.predicted[place]];
    const wrong = gallery.labels[place] === gallery.predicted[place] ? "" : ` (taken for ${guess})`;
    card.querySelector("figcaption").replaceChildren(name, ` ${label}${wrong}`);
  }

  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) { inSight.add(target); draw(target); } else { inSight.delete(target); }
    }
  }, { rootMargin: "200px" });

  const end = new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) more();
  }, { rootMargin: "600px" });

  function more() {
    const cards = byId("cards");
    for (const place of order.slice(shown, shown + PAGE)) {
      const card = document.createElement("figure");
      card.className = "card";
      card.dataset.place = place;
      card.title = here().ids[place];
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = side * SCALE;
      canvas.setAttribute("role", "img");
      card.append(canvas, document.createElement("figcaption"));
      caption(card, place);
      cards.append(card);
      sight.observe(card);
    }
    shown = Math.min(order.length, shown + PAGE);
    end.unobserve(byId("more"));
    if (shown < order.length) end.observe(byId("more"));
  }

  function say() {
    const gallery = here();
    const counted = order.filter((i) => gallery.counted[i]);
    const good = counted.filter((i) => overlapOf(i) >= 0.5).length;
    const them = counted.length < order.length ? `the ${counted.length} with truth` : "them";
    const share = counted.length ? `; ${gallery.measure} overlap of at least 0.5 for ${Math.round((100 * good) / counted.length)} % of ${them}` : "";
    byId("threshold-value").textContent = (step / steps).toFixed(2);
    byId("summary").textContent = `${order.length} image${order.length === 1 ? "" : "s"} of the ${gallery.images} of the split${share}` +
      ` at threshold ${(step / steps).toFixed(2)}${step === chosen() ? " (as chosen)" : ""}.`;
  }

  function list() {
    const gallery = here();
    const wanted = byId("class").value;
    order = gallery.labels.map((_, i) => i).filter((i) => wanted === "" || gallery.labels[i] === Number(wanted));
    const way = { low: 1, high: -1 }[byId("order").value];
    const rank = (place) => way * overlapOf(place) + 2 * !here().counted[place]; // what has no truth comes last
    if (way) order.sort((a, b) => rank(a) - rank(b) || a - b);
    sight.disconnect();
    inSight.clear();
    byId("cards").replaceChildren();
    shown = 0;
    say();
    more();
  }

  function redraw() {
    say();
    for (const card of byId("cards").children) caption(card, Number(card.dataset.place));
    for (const card of inSight) draw(card);
  }

  function setStep(value) {
    step = value;
    byId("threshold").value = step;
  }

  function openRun() {
    const gallery = here();
    byId("kind").replaceChildren();
    for (const name of [...gallery.kinds].reverse()) option(byId("kind"), name, all.titles[name]);
    kind = byId("kind").value;
    byId("class").replaceChildren();
    option(byId("class"), "", "all");
    for (const label of [...new Set(gallery.labels)].sort((a, b) => a - b)) option(byId("class"), label, gallery.classes[label]);
    setStep(chosen());
    list();
  }

  all.galleries.forEach((g, i) => option(byId("run"), i, g.name));
  byId("run-label").hidden = all.galleries.length < 2;
  byId("run").addEventListener("change", () => { run = Number(byId("run").value); openRun(); });
  byId("kind").addEventListener("change", () => { kind = byId("kind").value; setStep(chosen()); list(); });
  byId("class").addEventListener("change", list);
  byId("order").addEventListener("change", list);
  byId("view").addEventListener("change", redraw);
  byId("safe").addEventListener("change", () => { section.classList.toggle("safe", byId("safe").checked); readPalette(); redraw(); });
  let waiting = false;
  byId("threshold").addEventListener("input", () => {
    step = Number(byId("threshold").value);
    if (!waiting) requestAnimationFrame(() => { waiting = false; redraw(); });
    waiting = true;
  });
  byId("threshold").addEventListener("change", () => { if (byId("order").value !== "list") list(); });
  byId("reset").addEventListener("click", () => { setStep(chosen()); list(); });
  readPalette();
  openRun();
})();
