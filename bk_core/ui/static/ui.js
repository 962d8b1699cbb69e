// Refreshes the parts of a page that change, and the keys. Without it every page works by its links and forms.
"use strict";
(() => {
  const EVERY_MS = 2000, SOON_MS = 700, PATIENCE_MS = 10000;
  const byId = id => document.getElementById(id);
  let paused = false, timer = 0, busy = false, silentSince = 0, began = "", beganAt = 0;

  // --- refreshing -------------------------------------------------------------------------------------------------

  const later = ms => { clearTimeout(timer); timer = setTimeout(refresh, ms); };
  const isPending = () => document.querySelector("[data-pending]") !== null;

  async function refresh() {
    if (busy) return;
    if (paused || document.hidden) return later(EVERY_MS);
    busy = true;
    try {
      const answer = await fetch(location.href, {credentials: "same-origin", cache: "no-store", redirect: "error",
        signal: AbortSignal.timeout(PATIENCE_MS)});
      if (answer.status === 403) { say("This page has ended, and another one may be there. Open the address that bk ui has printed."); return; }
      if (!(answer.headers.get("Content-Type") || "").startsWith("text/html")) throw new Error("no page");
      take(new DOMParser().parseFromString(await answer.text(), "text/html"));
      silentSince = 0;
      say("");
    } catch (_) {
      silentSince = silentSince || Date.now();
      const seconds = Math.round((Date.now() - silentSince) / 1000);
      say(`bk ui itself has not answered since ${new Date(silentSince).toLocaleTimeString()} (${seconds} s). Is it still running?`);
    } finally {
      busy = false;
      later(isPending() ? SOON_MS : EVERY_MS);
    }
  }

  function say(text) {
    const box = byId("silent");
    box.hidden = !text;
    if (box.textContent !== text) box.textContent = text;
    const old = byId("banner").textContent.trim() !== "";  // the cluster does not answer, so what is shown is from before
    byId("refreshing").className = text || paused || old ? "" : "now";
    byId("refreshing").textContent = paused ? "paused: p goes on" : text ? "" : old ? "not live: the cluster does not answer" : "live";
  }

  // Parts that are new or gone change the whole page; else only what differs is put in, and what is in use stays.
  function take(fresh) {
    const parts = [...document.querySelectorAll("[data-live]")], ids = parts.map(part => part.id);
    const freshIds = [...fresh.querySelectorAll("[data-live]")].map(part => part.id);
    document.title = fresh.title;
    if (ids.join() !== freshIds.join()) {
      if (!inUse(byId("main"))) byId("main").replaceChildren(...fresh.getElementById("main").childNodes);
      for (const id of ["banner", "seen"]) byId(id).replaceChildren(...fresh.getElementById(id).childNodes);
      return again();
    }
    for (const part of parts) {
      const to = fresh.getElementById(part.id);
      if (to.innerHTML === part.innerHTML || inUse(part)) continue;
      const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      part.replaceChildren(...to.childNodes);
      if (focused) for (const link of part.querySelectorAll("a")) if (link.getAttribute("href") === focused) { link.focus(); break; }
    }
    again();
  }

  function inUse(part) {
    const chosen = getSelection();
    if (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode)) return true;
    const at = document.activeElement;
    return part.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
  }

  // --- rows -------------------------------------------------------------------------------------------------------

  let chosenKey = null;
  const rows = () => [...document.querySelectorAll("main table.rows tbody tr[data-key]")];
  const nameOf = row => `${row.closest("section").id} ${row.dataset.key}`;

  function again() {
    const row = chosenKey && rows().find(one => nameOf(one) === chosenKey);
    if (row) row.classList.add("chosen");
  }

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex(row => row.classList.contains("chosen"));
    const to = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    if (at >= 0) all[at].classList.remove("chosen");
    to.classList.add("chosen");
    chosenKey = nameOf(to);
    to.scrollIntoView({block: "nearest"});
    const link = to.querySelector("a[href]");
    if (link) link.focus({preventScroll: true});
  }

  const open = () => { const link = document.querySelector("tr.chosen a[href]"); if (link) link.click(); };
  const step = key => { const link = document.querySelector(`[data-step=${key}]`); if (link) link.click(); };

  // --- keys -------------------------------------------------------------------------------------------------------

  const keys = {
    j: () => move(1), k: () => move(-1), n: () => step("n"), b: () => step("b"),
    "/": () => { byId("search").focus(); byId("search").select(); },
    r: () => { clearTimeout(timer); refresh(); },
    p: () => { paused = !paused; say(byId("silent").textContent); },
    "?": () => byId("keys").showModal(),
  };

  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) { event.target.blur(); return; }
    if (typing || byId("keys").open) return;
    if (began === "g" && Date.now() - beganAt < 1500) {
      began = "";
      const link = document.querySelector(`nav [data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    began = "";
    if (event.key === "g") { began = "g"; beganAt = Date.now(); return; }
    if (event.key === "Enter" && event.target.closest("a, button, summary") === null) return open();
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); refresh(); } });
  const show = byId("show-keys");
  show.hidden = false;
  show.addEventListener("click", () => byId("keys").showModal());
  say("");
  later(isPending() ? SOON_MS : EVERY_MS);
})();
