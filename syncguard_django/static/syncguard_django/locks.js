/* The page of live locks: updates the durations, and refreshes the list.
 *
 * An external file that sets no inline style or script, so that a strict Content-Security-Policy
 * allows it. Without it the page works, but does not update.
 */
"use strict";
{
  const REFRESH_MS = 5000;
  const TICK_MS = 250;
  const SOON_MS = 5000;
  const PAUSED = "syncguard-paused";
  // What a refresh replaces: the list, and every place where a theme shows the number of locks.
  const PARTS = [
    "#syncguard-live",
    "#syncguard-pages",
    "#syncguard-pages-top", // django-grappelli
    "#changelist-search .quiet",
    "#header-inner h1", // django-unfold
  ];

  // Replaced by the words in the language of the page when it has loaded.
  let words = { under: "under 1 s", days: "d", expired: "expired" };

  // The same as for_people() in durations.py.
  const forPeople = (ms) => {
    const seconds = Math.floor(Math.max(0, ms) / 1000);
    const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
    if (seconds < 1) return words.under;
    if (!minutes) return `${seconds} s`;
    if (!hours) return `${minutes} min ${seconds % 60} s`;
    if (!days) return `${hours} h ${minutes % 60} min`;
    return `${days} ${words.days} ${hours % 24} h`;
  };

  let clocks = [];

  const readClocks = () => {
    const now = performance.now();
    clocks = [...document.querySelectorAll(".syncguard-duration")].map((element) => {
      const { syncguardRemainingMs: left, syncguardHeldMs: held } = element.dataset;
      return left === undefined
        ? { element, since: now - Number(held) }
        : { element, until: now + Number(left), row: element.closest("#result_list tr") };
    });
  };

  const tick = () => {
    const now = performance.now();
    for (const { element, since, until, row } of clocks) {
      if (until === undefined) {
        if (!element.closest("tr.expired")) element.textContent = forPeople(now - since);
        continue;
      }
      const left = until - now;
      element.textContent = left > 0 ? forPeople(left) : words.expired;
      element.classList.toggle("soon", left <= SOON_MS);
      row?.classList.toggle("expired", left <= 0);
    }
  };

  const startRefreshing = (tools) => {
    const status = document.getElementById("syncguard-status");
    const updated = tools.querySelector(".syncguard-updated");
    const button = document.getElementById("syncguard-pause");
    const phrases = status.dataset;
    let paused = sessionStorage.getItem(PAUSED) === "yes";
    let signedOut = false;

    // Announce only changes: a screen reader must not interrupt the user every five seconds.
    const announce = (text) => {
      if (status.textContent !== text) status.textContent = text;
    };

    const show = (text, spoken = text) => {
      updated.textContent = text;
      announce(spoken);
    };

    const showUpdated = () => {
      const total = document.getElementById("syncguard-live").dataset.total;
      const counted = total === "1" ? phrases.one : phrases.many.replace("{n}", total);
      const spoken = total === "unknown" ? phrases.unknown : counted;
      const time = new Date().toLocaleTimeString(document.documentElement.lang || undefined);
      show(phrases.updated.replace("{time}", time), spoken);
    };

    // Do not replace parts that contain the keyboard focus or a selection.
    const isInUse = () => {
      const selection = document.getSelection();
      const selected = selection && !selection.isCollapsed ? selection.anchorNode : null;
      return PARTS.some((selector) => {
        const part = document.querySelector(selector);
        return part?.contains(document.activeElement) || (selected && part?.contains(selected));
      });
    };

    const refresh = async () => {
      if (paused || signedOut || document.hidden || isInUse()) return;
      const response = await fetch(location.href, { credentials: "same-origin" });
      if (response.redirected || response.status === 403) {
        signedOut = true;
        show(phrases.signedOut);
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (paused || isInUse()) return;
      const scrolled = document.querySelector("#syncguard-live .results")?.scrollLeft ?? 0;
      for (const selector of PARTS) {
        const [shown, fresh] = [document, page].map((where) => where.querySelector(selector));
        if (fresh) shown?.replaceWith(document.adoptNode(fresh));
        else shown?.replaceChildren(); // no number: keep the empty element for the next refresh
      }
      document.querySelector("#syncguard-live .results")?.scrollTo(scrolled, 0);
      readClocks();
      tick();
      showUpdated();
    };

    const refreshForEver = async () => {
      try {
        await refresh();
      } catch {
        show(phrases.failed);
      }
      setTimeout(refreshForEver, REFRESH_MS);
    };

    const showPaused = () => {
      button.textContent = paused ? button.dataset.resume : button.dataset.pause;
      if (paused) show(phrases.paused);
      else showUpdated();
    };

    button.addEventListener("click", () => {
      paused = !paused;
      sessionStorage.setItem(PAUSED, paused ? "yes" : "no");
      showPaused();
    });
    tools.hidden = false;
    showPaused();
    setTimeout(refreshForEver, REFRESH_MS);
  };

  document.addEventListener("DOMContentLoaded", () => {
    words = document.getElementById("syncguard-words")?.dataset ?? words;
    readClocks();
    tick();
    setInterval(tick, TICK_MS);
    const tools = document.querySelector(".syncguard-refresh");
    if (tools) startRefreshing(tools);
  });
}
