// The status page, kept up to date: the page is fetched again and its parts are taken over; the journal is followed.
// The token lives in a variable and nowhere else. Text from the process is only ever set as text.
'use strict';
(() => {
  const REFRESH = 2000, PATIENCE = 30000, RUNS = 100;
  let token = null, paused = false, failures = 0, seen = null, timer = null, follower = null;
  const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});
  const at = (id) => document.getElementById(id);
  const wait = () => Math.min(REFRESH * 2 ** failures, PATIENCE);

  function say(text, lost) {
    const live = at('live');
    if (!live) return;
    live.classList.toggle('lost', lost);
    if (live.textContent !== text) live.textContent = text;
  }

  // Takes the parts of a fetched page over. Scripts in it would not run: it is parsed as a document of its own.
  function take(html, whole) {
    const page = new DOMParser().parseFromString(html, 'text/html');
    if (whole) {
      const old = document.body.querySelector('script');
      page.body.querySelectorAll('script, noscript').forEach((node) => node.remove());
      document.body.replaceChildren(...page.body.childNodes, old);
      begin();
    }
    for (const part of page.querySelectorAll('[data-part]')) {
      const name = part.dataset.part;
      const here = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (!here || (name === 'journal' && follower) || here.innerHTML === part.innerHTML) continue;
      here.replaceChildren(...part.childNodes);
    }
    document.title = `${document.querySelector('h1').textContent} · evenkeel`;
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch('/', { headers: headers(), signal: AbortSignal.timeout(10000), cache: 'no-store' });
      if (answer.status === 401) return lock('This token is not accepted.');
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `status ${answer.status}`);
      take(await answer.text(), Boolean(at('locked')));
      failures = 0;
      seen = new Date();
      say('live', false);
    } catch (error) {
      failures += 1;
      const since = seen ? ` since ${seen.toISOString().slice(11, 19)} UTC` : '';
      say(`No answer${since}; what stands here is old. Trying again.`, true);
      if (at('refused')) at('refused').textContent = `No answer: ${error.message}`;
    }
    if (!at('locked')) timer = setTimeout(refresh, wait());
  }

  function lock(why) {
    follower?.abort();
    if (!at('locked')) return location.reload();
    token = null;
    at('refused').textContent = why;
    at('token').select();
  }

  function line(run) {
    const row = document.createElement('tr');
    const cell = (text, kind = 'td', of = '') => {
      const node = row.appendChild(document.createElement(kind));
      node.className = of;
      const inner = node.appendChild(document.createElement('bdi'));
      inner.textContent = clean(text);
      return inner;
    };
    const good = { done: 'good', requeued: 'good', given_up: 'bad', panicked: 'bad' };
    const time = cell(run.at.slice(11, 19));
    time.title = run.at;
    const outcome = cell(run.outcome.replace('_', ' '));
    outcome.className = `badge ${good[run.outcome] ?? 'warn'}`;
    const id = cell(run.id, 'th', 'id');
    id.parentNode.scope = 'row';
    cell(String(run.attempt));
    cell(span(run.duration_seconds));
    cell(span(run.waited_seconds));
    cell(run.causes.length ? cause(run.causes[0]) + (run.causes.length + run.more_causes > 1 ? ' …' : '') : '');
    cell(run.message ?? '', 'td', 'text');
    return row;
  }

  const clean = (text) => text.slice(0, 300).replace(/[\n\t]/g, ' ').replace(/[\p{Cc}\p{Cf}]/gu, '\ufffd');

  function cause(cause) {
    if (typeof cause === 'string') return cause;
    const [kind, of] = Object.entries(cause)[0];
    if (kind === 'event') return of.topic ? `${of.topic}/${of.partition}@${of.offset}` : of.stream;
    if (kind === 'resync') return `resync ${of.stream}`;
    return kind === 'retry' ? `retry after attempt ${of.attempt}` : kind;
  }

  function span(seconds) {
    if (seconds < 0.00095) return `${(seconds * 1e6).toFixed(0)} µs`;
    if (seconds < 0.95) return `${(seconds * 1e3).toFixed(0)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    return seconds < 120 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(0)} min`;
  }

  function skipped(runs) {
    const row = document.createElement('tr');
    const cell = row.appendChild(document.createElement('td'));
    cell.colSpan = 8;
    cell.className = 'empty';
    cell.textContent = `${runs} more runs, not shown`;
    return row;
  }

  // Reads the journal as it grows. An EventSource cannot send a token, so the stream is read by hand.
  async function follow() {
    follower = new AbortController();
    try {
      const path = '/v1/journal?follow=true&limit=30';
      const answer = await fetch(path, { headers: headers(), signal: follower.signal });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '', first = true;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (rest + value).split('\n\n');
        rest = events.pop();
        const lines = events.flatMap(shown);
        if (paused || !lines.length) continue;
        const body = document.querySelector('[data-part="journal"]');
        if (first) body.replaceChildren();
        first = false;
        body.prepend(...lines.reverse());
        while (body.rows.length > RUNS) body.lastElementChild.remove();
      }
    } catch { /* The refresh says what is wrong; here it is only tried again. */ }
    follower = null;
    setTimeout(() => follower || at('locked') || document.hidden || follow(), wait());
  }

  function shown(event) {
    const field = (name) => event.split('\n').find((text) => text.startsWith(`${name}: `))?.slice(name.length + 2);
    const [kind, data] = [field('event'), field('data')];
    if (kind === 'run') return [line(JSON.parse(data))];
    return kind === 'skipped' ? [skipped(JSON.parse(data).runs)] : [];
  }

  function begin() {
    const pause = at('pause');
    pause.hidden = false;
    pause.setAttribute('aria-pressed', 'false');
    pause.addEventListener('click', () => {
      paused = !paused;
      pause.setAttribute('aria-pressed', String(paused));
    });
    if (!follower) follow();
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) follower?.abort();
    else if (!at('locked')) refresh();
    if (!document.hidden && !follower && !at('locked')) follow();
  });
  if (at('locked')) {
    at('unlock').addEventListener('submit', (event) => {
      event.preventDefault();
      token = at('token').value.trim();
      refresh();
    });
  } else {
    begin();
    timer = setTimeout(refresh, REFRESH);
  }
})();
