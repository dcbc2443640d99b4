/* Keys, live updates and logs. Everything works without it, but for logs and updates by themselves. */
"use strict";

const main = document.getElementById("main");
const byId = (id) => document.getElementById(id);

/* Times in the viewer's zone; UTC stays in the title. */
function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (isNaN(at)) continue;
    const isToday = at.toDateString() === new Date().toDateString();
    each.textContent = isToday
      ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" })
      : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

/* The log of a job: lines come as HTML that the server has escaped. */
const LINES_MAX = 5000;
let logStream = null;

function openLog() {
  const pane = main.querySelector("[data-log]");
  if (!pane) return;
  const state = main.querySelector("[data-log-state]");
  const say = (text) => { if (state) state.textContent = text; };
  let isEmpty = true;
  say("connecting");
  logStream = new EventSource(pane.dataset.log);
  logStream.addEventListener("open", () => { pane.textContent = ""; isEmpty = true; say("live; no lines yet"); });
  logStream.addEventListener("lines", (event) => {
    const isAtEnd = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 24;
    pane.insertAdjacentHTML("beforeend", event.data);
    while (pane.childElementCount > LINES_MAX) pane.firstElementChild.remove();
    search();
    if (isAtEnd || isEmpty) pane.scrollTop = pane.scrollHeight;
    isEmpty = false;
    say(`live; ${pane.childElementCount.toLocaleString()} lines`);
  });
  const end = (text) => { logStream.close(); say(text); };
  logStream.addEventListener("end", () => end(isEmpty ? "it wrote nothing" : "complete"));
  logStream.addEventListener("gone", (event) => end(event.data));
  logStream.addEventListener("error", () => say("the connection was lost; it is tried again"));
}

function search() {
  const field = main.querySelector("[data-search]");
  if (!field) return;
  const wanted = field.value.toLowerCase();
  for (const line of main.querySelectorAll(".log .line")) {
    line.hidden = wanted !== "" && !line.textContent.toLowerCase().includes(wanted);
  }
}
main.addEventListener("input", (event) => { if (event.target.matches("[data-search]")) search(); });
main.addEventListener("change", (event) => {
  if (event.target.matches("select") && !event.target.form.matches("[data-waits]")) event.target.form.requestSubmit();
});

/* Live: the server sends what is between header and footer, when it differs. */
function show(html) {
  const active = document.activeElement;
  const isTyping = active && active.matches("input, select") && main.contains(active);
  const href = rows()[at]?.querySelector("a")?.getAttribute("href");
  const next = document.createElement("template");
  next.innerHTML = html;
  const chosen = new Set([...main.querySelectorAll("input[type=checkbox]:checked")].map((each) => each.value));
  for (const each of next.content.querySelectorAll("input[type=checkbox]")) each.checked = chosen.has(each.value);
  const log = main.querySelector(".log"), top = log?.scrollTop;
  const kept = [...main.querySelectorAll(".wide")].map((each) => [each.scrollLeft, each.scrollTop]);
  const fresh = next.content.querySelectorAll("[data-keep], .filter, .tools");
  const old = main.querySelectorAll("[data-keep], .filter, .tools");
  if (fresh.length === old.length) fresh.forEach((each, n) => each.replaceWith(old[n]));
  localTimes(next.content);
  main.replaceChildren(next.content);
  if (log) log.scrollTop = top;
  main.querySelectorAll(".wide").forEach((each, n) => { if (kept[n]) [each.scrollLeft, each.scrollTop] = kept[n]; });
  if (isTyping && main.contains(active)) active.focus();
  else if (isTyping && active.type === "checkbox") [...main.querySelectorAll("input[type=checkbox]")].find((each) => each.value === active.value)?.focus();
  if (href) select(rows().findIndex((row) => row.querySelector("a")?.getAttribute("href") === href), false);
  if (!logStream && main.querySelector("[data-log]")) openLog();
}

const RETRY_MS = 3000;

function follow() {
  if (!main.dataset.digest) return;
  const badge = byId("live");
  let heard = Date.now(), isOpen = false, isOver = false, stream = null;
  const of = location.pathname + location.search;
  const end = (text) => { isOver = true; stream.close(); badge.textContent = text; badge.className = "lost"; };
  function open() {
    stream = new EventSource(`/live?of=${encodeURIComponent(of)}&seen=${main.dataset.digest}`);
    stream.addEventListener("open", () => { isOpen = true; });
    stream.addEventListener("main", (event) => { show(event.data); heard = Date.now(); });
    stream.addEventListener("alive", (event) => {
      const silent = Number(event.data);
      heard = Date.now();
      badge.dataset.silent = silent > 150 ? silent : "";
      tell();
    });
    stream.addEventListener("gone", (event) => end(event.data));
    stream.addEventListener("expired", () => { end("signed out"); location.reload(); });
    stream.addEventListener("error", () => {
      isOpen = false;
      if (stream.readyState === 2 && !isOver) setTimeout(again, RETRY_MS); // else it tries by itself
      tell();
    });
  }
  /* A server that has refused the stream is asked why: who is signed out goes to sign in. */
  async function again() {
    try {
      const answer = await fetch(of, { method: "HEAD" });
      if (answer.status === 401) { location.reload(); return; }
      open();
    } catch { setTimeout(again, RETRY_MS); }
  }
  const ago = (ms) => ms < 60000 ? `${Math.round(ms / 1000)}s` : `${Math.round(ms / 60000)}m`;
  function tell() {
    if (isOver) return;
    const age = Date.now() - heard, isLost = !isOpen || age > 30000;
    badge.className = isLost || badge.dataset.silent ? "lost" : "on";
    badge.textContent = isLost ? `lost; as of ${ago(age)} ago`
      : badge.dataset.silent ? `cluster silent for ${ago(badge.dataset.silent * 1000)}` : "live";
    main.classList.toggle("old", isLost || !!badge.dataset.silent);
  }
  open();
  setInterval(tell, 1000);
}

/* Keys. */
let at = -1, isGoing = false;
const rows = () => [...main.querySelectorAll("table.rows tbody tr, .tiles li")].filter((row) => row.querySelector("a"));

function select(number, isScrolled = true) {
  const all = rows();
  for (const row of all) row.classList.remove("at");
  at = all.length ? Math.max(0, Math.min(number, all.length - 1)) : -1;
  if (at < 0) return;
  all[at].classList.add("at");
  if (isScrolled) {
    all[at].querySelector("a").focus({ preventScroll: true });
    all[at].scrollIntoView({ block: "nearest" });
  }
}

const help = byId("help");
const places = { h: "/", j: "/jobs", a: "/arrays", c: "/cluster", t: "/teams", f: "/fleet", n: "/network", d: "/doctor", s: "/decisions", u: "/usage", r: "/runs", m: "/simulator" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const field = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (field) field.blur();
    else if (document.referrer.startsWith(location.origin) && location.pathname !== "/") history.back();
    else if (location.pathname !== "/") location.assign("/");
    return;
  }
  if (field) return;
  if (isGoing && places[event.key]) { isGoing = false; location.assign(places[event.key]); return; }
  isGoing = event.key === "g";
  if (event.key === "j" || event.key === "k") select(at + (event.key === "j" ? 1 : -1));
  else if (event.key === "?") help.showModal();
  else if (event.key === "/") {
    const filter = main.querySelector("input[type=search]");
    if (filter) filter.focus(); else location.assign("/jobs#filter");
  } else return;
  event.preventDefault();
});

const keys = byId("keys"), copy = byId("copy");
if (keys) { keys.hidden = false; keys.addEventListener("click", () => help.showModal()); }
if (copy && navigator.clipboard) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId("command").textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
}

localTimes(main);
if (location.hash === "#filter") main.querySelector("input[type=search]")?.focus();
openLog();
follow();
