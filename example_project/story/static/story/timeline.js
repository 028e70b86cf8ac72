// Draws one scene as SVG: a lane for every process, a bar for every time that it held the lock.
// One lock, so bars never overlap in time. No style attributes: the page's policy forbids them.
"use strict";

const Timeline = (() => {
  const LEFT = 108, RIGHT = 16, NOTES = 215, TOP = 30, LANE = 40, BAR = 22, AXIS = 26, MIN_LANES = 4;
  const SHORTEST_MS = 2500, CLOSEST_LABELS = 52;

  const short = (fence) => fence.replace(/^0+(?=\d)/, "");

  function element(parent, name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  // -- what the events mean -------------------------------------------------------------------

  // Every hold: start, end, process, and how it ended. `open` means that it has not ended.
  function holdsOf(events, now) {
    const holds = [];
    for (const event of events) {
      if (event.kind === "acquired") {
        const before = holds.at(-1);
        // A release is recorded shortly after it happens: the next holder may be recorded first.
        if (before && before.to > event.at_ms) before.to = event.at_ms;
        holds.push({ fence: event.fence, pid: event.pid, from: event.at_ms, to: now, end: "open" });
        continue;
      }
      const hold = holds.find((other) => other.fence === event.fence);
      if (!hold) continue;
      if (["released", "killed", "lost"].includes(event.kind) && hold.end === "open") {
        const next = holds[holds.indexOf(hold) + 1];
        hold.to = Math.min(event.at_ms, next ? next.from : Infinity);
        hold.end = event.kind;
      }
      if (["killed", "kept"].includes(event.kind)) hold.until = event.until_ms;
    }
    return holds;
  }

  function pausesOf(events, now) {
    return events
      .filter((event) => event.kind === "paused")
      .map((event) => {
        const end = events.find((o) => o.kind === "resumed" && o.at_ms >= event.at_ms);
        return { from: event.at_ms, to: end ? end.at_ms : now };
      });
  }

  // The bank's letters: published by a holder with its fence; they arrive later.
  function lettersOf(holds, events, scene, now) {
    if (!scene.key?.startsWith("invoice:")) return [];
    const letters = [];
    for (const hold of holds) {
      const arrived = events.find((e) => e.fence === hold.fence && ["refused", "filed"].includes(e.kind));
      // A holder that found the invoice settled was quick, and published none.
      const expected = hold.to - hold.from > 250 && scene.ended === null;
      if (arrived || expected) {
        letters.push({ fence: hold.fence, from: hold.from, to: arrived?.at_ms ?? now, end: arrived?.kind ?? "open" });
      }
    }
    return letters;
  }

  function lanesOf(events) {
    const pids = [];
    for (const event of events) {
      if (["paused", "resumed", "refused", "filed"].includes(event.kind)) continue;
      if (!pids.includes(event.pid)) pids.push(event.pid);
    }
    return pids;
  }

  // -- drawing --------------------------------------------------------------------------------

  function draw(svg, scene, now, width) {
    const end = scene.ended ?? now;
    const span = Math.max(SHORTEST_MS, (end - scene.started) * 1.03);
    const pids = lanesOf(scene.events);
    const holds = holdsOf(scene.events, now);
    const letters = lettersOf(holds, scene.events, scene, now);
    const lanes = Math.max(MIN_LANES, pids.length + letters.length);
    const height = TOP + lanes * LANE + AXIS;
    // The result of a letter is written to the right of its arrival.
    const room = width - LEFT - RIGHT - (letters.length ? NOTES : 0);
    const x = (ms) => LEFT + ((ms - scene.started) / span) * room;
    const y = (pid) => TOP + pids.indexOf(pid) * LANE;
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);

    for (let lane = 0; lane < lanes; lane++) {
      element(svg, "rect", {
        class: "lane", x: LEFT, y: TOP + lane * LANE + 3, rx: 6,
        width: width - LEFT - RIGHT, height: LANE - 6,
      });
    }
    for (const pid of pids) {
      const publisher = scene.events.find((e) => e.pid === pid).kind === "duplicate";
      const name = publisher ? "web server" : `process ${pid}`;
      element(svg, "text", { x: 0, y: y(pid) + LANE / 2 + 4 }, name);
    }
    for (const pause of pausesOf(scene.events, now)) {
      const from = x(pause.from), to = x(pause.to);
      element(svg, "rect", { class: "band", x: from, y: TOP - 24, width: Math.max(1, to - from), height: lanes * LANE + 24, rx: 6 });
      element(svg, "text", { class: "band-text", x: from + 8, y: TOP - 8 }, "Redis is silent");
    }
    drawAxis(svg, x, scene.started, span, TOP + lanes * LANE);
    const drawn = { svg, x, y, labels: new Map() };
    for (const event of scene.events) drawWait(drawn, event);
    for (const hold of holds) drawHold(drawn, hold, end);
    letters.forEach((letter, row) => drawLetter(drawn, letter, TOP + (pids.length + row) * LANE));
    drawMarks(drawn, scene.events);
    if (scene.ended === null) {
      element(svg, "line", { class: "now", x1: x(now), x2: x(now), y1: TOP, y2: TOP + lanes * LANE });
    }
  }

  function drawAxis(svg, x, started, span, bottom) {
    const pixels = x(started + 1) - x(started);
    const step = [500, 1000, 2000, 5000, 10000].find((ms) => ms * pixels >= CLOSEST_LABELS) ?? 20000;
    for (let ms = 0; ms <= span; ms += step) {
      const at = x(started + ms);
      element(svg, "line", { class: "grid", x1: at, x2: at, y1: TOP, y2: bottom });
      element(svg, "text", { x: at, y: bottom + 18, "text-anchor": ms ? "middle" : "start" }, `${ms / 1000} s`);
    }
  }

  function drawHold({ svg, x, y, labels }, hold, end) {
    const top = y(hold.pid) + (LANE - BAR) / 2;
    if (hold.until) {
      const until = Math.min(hold.until, end);
      const ghost = element(svg, "rect", {
        class: "ghost", x: x(hold.to), y: top + 1, height: BAR - 2, rx: 4,
        width: Math.max(2, x(until) - x(hold.to)),
      });
      element(ghost, "title", {}, "Locked until its time is up, with nobody at work");
    }
    const from = x(hold.from), width = Math.max(4, x(hold.to) - from);
    const bar = element(svg, "rect", { class: "hold", x: from, y: top, width, height: BAR, rx: Math.min(5, width / 2) });
    const held = Math.round(hold.to - hold.from);
    element(bar, "title", {}, `Process ${hold.pid} held the lock for ${held} ms, fence ${short(hold.fence)}`);
    const label = short(hold.fence);
    if (width > 62) {
      element(svg, "text", { class: "fence", x: from + 8, y: top + 15 }, `fence ${label}`);
    } else if (width > 9 + 7 * label.length) {
      element(svg, "text", { class: "fence", x: from + width / 2, y: top + 15, "text-anchor": "middle" }, label);
    } else if (from - (labels.get(hold.pid) ?? -99) > 20) {
      element(svg, "text", { class: "above", x: from + width / 2, y: top - 1, "text-anchor": "middle" }, label);
      labels.set(hold.pid, from);
    }
    if (hold.end === "killed" || hold.end === "lost") {
      const at = x(hold.to);
      drawBurst(svg, at, top + BAR / 2);
      const text = hold.end === "killed" ? "kill -9" : "LockLost";
      element(svg, "text", { class: "burst-text", x: at + 12, y: top + 15 }, text);
    }
  }

  function drawBurst(svg, x, y) {
    element(svg, "path", { class: "burst", d: `M${x - 6} ${y - 6}l12 12m0 -12l-12 12` });
  }

  function drawWait({ svg, x, y }, event) {
    if (event.kind !== "contended") return;
    const at = x(event.at_ms), middle = y(event.pid) + LANE / 2;
    const tick = element(svg, "line", { class: "wait", x1: at, x2: at, y1: middle - 5, y2: middle + 5 });
    element(tick, "title", {}, `Found the lock held with fence ${short(event.fence)}; will come again`);
  }

  function drawLetter({ svg, x }, letter, top) {
    const from = x(letter.from), to = x(letter.to), middle = top + LANE / 2;
    element(svg, "text", { x: 0, y: middle + 4 }, `letter, fence ${short(letter.fence)}`);
    element(svg, "line", { class: "journey", x1: from, x2: to, y1: middle, y2: middle });
    element(svg, "circle", { class: "ordered", cx: from, cy: middle, r: 4 });
    if (letter.end === "open") return;
    const beside = { x: to + 14, y: middle + 4 };
    if (letter.end === "refused") {
      drawBurst(svg, to, middle);
      element(svg, "text", { class: "burst-text", ...beside }, "late write refused: StaleFence");
    } else {
      element(svg, "path", { class: "filed", d: `M${to - 6} ${middle}l4 5l8 -10` });
      element(svg, "text", { class: "filed-text", ...beside }, "written");
    }
  }

  // Duplicates and skips. Those of one process are drawn side by side and counted.
  function drawMarks({ svg, x, y }, events) {
    const counted = new Map();
    for (const event of events) {
      const at = x(event.at_ms), middle = y(event.pid) + LANE / 2;
      if (event.kind === "duplicate" || event.kind === "skipped") {
        const place = `${event.kind} ${event.pid}`;
        const group = counted.get(place) ?? { at, middle, kind: event.kind, count: 0 };
        const shift = at + 15 * group.count;
        element(svg, "path", { class: "dup", d: `M${shift} ${middle - 6}l6 6l-6 6l-6 -6Z` });
        group.count += 1;
        group.right = shift;
        counted.set(place, group);
      }
    }
    for (const group of counted.values()) {
      const word = group.kind === "skipped" ? "skipped" : group.count > 1 ? "duplicates returned" : "duplicate returned";
      element(svg, "text", { class: "dup-text", x: group.right + 13, y: group.middle + 4 }, `${group.count} ${word}`);
    }
  }

  return { draw, short };
})();
