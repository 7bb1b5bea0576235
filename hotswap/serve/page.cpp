#include "hotswap/serve/page.h"

#include <string_view>

namespace hotswap::serve {
namespace {

constexpr std::string_view kNonce = "{{nonce}}";

// Text of a model becomes text nodes only, never markup.
constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hotswap</title>
<style nonce="{{nonce}}">
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { margin: 0; height: 100dvh; display: flex; flex-direction: column; }
  header, footer { padding: .5rem 1rem; display: flex; gap: .5rem; align-items: center; flex-wrap: wrap; }
  header { border-bottom: 1px solid #8884; } footer { border-top: 1px solid #8884; }
  main { flex: 1; overflow-y: auto; padding: 1rem; }
  main article { max-width: 46rem; margin: 0 auto 1rem; overflow-wrap: anywhere; white-space: pre-wrap; }
  article[data-role=user] { border-left: 3px solid #48c; padding-left: .75rem; }
  pre { overflow-x: auto; padding: .75rem; background: #8882; border-radius: 6px; white-space: pre; }
  code { font-family: ui-monospace, monospace; }
  textarea { flex: 1 1 16rem; font: inherit; min-height: 2.5rem; resize: vertical; }
  input[type=number] { width: 5rem; font: inherit; } #system { flex: 1 1 14rem; font: inherit; }
  button { font: inherit; padding: .4rem .9rem; } #status { opacity: .7; font-size: .85rem; margin-left: auto; }
  .error { color: #c33; }
</style>
<header>
  <strong id="model">hotswap</strong>
  <input id="system" placeholder="System message" aria-label="System message">
  <label>Temperature <input id="temperature" type="number" min="0" max="5" step="0.1" value="0.7"></label>
  <label>Tokens <input id="tokens" type="number" min="1" step="1" value="512"></label>
  <button id="clear">New chat</button>
  <span id="status" role="status"></span>
</header>
<main id="log" aria-live="polite"></main>
<footer>
  <textarea id="text" placeholder="Message (Enter sends, Shift+Enter: new line, Escape stops)" aria-label="Message" autofocus></textarea>
  <button id="send">Send</button>
  <button id="stop" hidden>Stop</button>
</footer>
<script nonce="{{nonce}}">
'use strict';
const get = id => document.getElementById(id);
const saved = stored();
let messages = Array.isArray(saved.messages) ? saved.messages.filter(m => m && typeof m.content === 'string') : [];
let running = null, model = '';
for (const id of ['system', 'temperature', 'tokens']) {
  if (saved[id] !== undefined) get(id).value = saved[id];
  get(id).onchange = save;
}
// What another page of this address may have written there must not keep this one from starting.
function stored() {
  try { return JSON.parse(localStorage.getItem('hotswap-chat')) || {}; } catch { return {}; }
}
function save() {
  localStorage.setItem('hotswap-chat', JSON.stringify({messages, system: get('system').value,
    temperature: get('temperature').value, tokens: get('tokens').value}));
}
function headers() {
  const key = sessionStorage.getItem('hotswap-key');
  return {'Content-Type': 'application/json', ...(key ? {Authorization: 'Bearer ' + key} : {})};
}
async function request(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, {...options, headers: headers()});
    if (answer.status !== 401) return answer;
    const key = prompt('API key of this server');
    if (!key) return answer;
    sessionStorage.setItem('hotswap-key', key);
  }
}
function inline(to, text) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    const kind = part.startsWith('`') ? 'code' : part.startsWith('**') ? 'strong' : '';
    if (!kind || part.length < 3) { to.append(part); continue; }
    const node = document.createElement(kind);
    node.textContent = kind === 'code' ? part.slice(1, -1) : part.slice(2, -2);
    to.append(node);
  }
}
function show(node, text) {
  node.replaceChildren();
  text.split(/^```.*$/m).forEach((part, i) => {
    if (i % 2 === 0) return inline(node, part);
    const block = document.createElement('pre'), code = document.createElement('code');
    code.textContent = part.replace(/^\n|\n$/g, '');
    block.append(code);
    node.append(block);
  });
}
function add(message) {
  const node = document.createElement('article');
  node.dataset.role = message.role;
  show(node, message.content);
  get('log').append(node);
  node.scrollIntoView({block: 'end'});
  return node;
}
function fail(text) {
  const node = add({role: 'error', content: text});
  node.className = 'error';
}
async function read(answer, onData) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const {value, done} = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) if (event.startsWith('data: {')) onData(JSON.parse(event.slice(6)));
  }
}
async function send() {
  const text = get('text').value.trim();
  if (!text || running) return;
  get('text').value = '';
  const chat = messages, question = {role: 'user', content: text}, shown = add(question);
  chat.push(question);
  const answer = {role: 'assistant', content: ''}, node = add(answer), start = performance.now();
  let first = 0, tokens = 0, waits = false;
  const draw = () => {  // at most once a frame: the whole text is parsed each time, and a fast server would leave no time for a click
    waits = false;
    show(node, answer.content);
    node.scrollIntoView({block: 'end'});
  };
  running = new AbortController();
  get('send').hidden = true; get('stop').hidden = false;
  try {
    const system = get('system').value.trim();
    const response = await request('v1/chat/completions', {method: 'POST', signal: running.signal, body: JSON.stringify({
      model, stream: true, stream_options: {include_usage: true}, temperature: Number(get('temperature').value),
      max_tokens: Number(get('tokens').value), messages: [...(system ? [{role: 'system', content: system}] : []), ...chat]})});
    if (!response.ok) throw new Error((await response.json()).error.message);
    await read(response, data => {
      if (data.error) throw new Error(data.error.message);
      if (data.usage) tokens = data.usage.completion_tokens;
      const delta = data.choices[0] && data.choices[0].delta.content;
      if (!delta) return;
      first = first || performance.now();
      answer.content += delta;
      if (!waits) requestAnimationFrame(draw);
      waits = true;
    });
    const seconds = (performance.now() - first) / 1000;
    get('status').textContent = `first token ${Math.round(first - start)} ms` +
      (tokens > 1 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : '') + kernels;
  } catch (error) {
    if (error.name !== 'AbortError') fail(error.message);
  }
  if (answer.content) {
    draw();
    chat.push(answer);
  } else {  // two messages of a user in a row are an error in many templates
    chat.pop();
    shown.remove();
    node.remove();
    get('text').value = get('text').value || text;
  }
  running = null;
  get('send').hidden = false; get('stop').hidden = true;
  save();
  get('text').focus();
}
get('send').onclick = send;
get('stop').onclick = () => running && running.abort();
get('clear').onclick = () => { if (running) running.abort(); messages = []; get('log').replaceChildren(); save(); };
get('text').onkeydown = event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
};
document.onkeydown = event => { if (event.key === 'Escape' && running) running.abort(); };
let kernels = '';
messages.forEach(add);
request('v1/models').then(answer => answer.json()).then(list => {
  model = list.data[0].id;
  kernels = `, kernels run in ${list.data[0].kernels}`;
  get('model').textContent = model.replace(/.*\//, '');
  get('status').textContent = kernels.slice(2);
}).catch(error => fail(error.message));
</script>
</html>
)html";

}  // namespace

std::string chat_page(const std::string& nonce) {
  std::string page(kPage);
  for (size_t at = 0; (at = page.find(kNonce, at)) != std::string::npos;) page.replace(at, kNonce.size(), nonce);
  return page;
}

std::string page_policy(const std::string& nonce) {
  return "default-src 'none'; connect-src 'self'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
         "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

}  // namespace hotswap::serve
