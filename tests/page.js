// As much of a browser as extras/page.html asks for, so that node can run its scripts. What a hand
// would do is said on the standard input: the page, and lines of JavaScript to be run one by one.
const vm = require("vm");
const {page, lines} = JSON.parse(require("fs").readFileSync(0, "utf8"));

class Element {
  constructor(tag) {
    const style = {setProperty(name, value) { this[name] = value; }};
    Object.assign(this, {tag, style, dataset: {}, nodes: [], hidden: false});
  }
  get children() { return this.nodes.filter(node => node instanceof Element); }
  get firstChild() { return this.nodes[0]; }
  get previousSibling() { return this.parent.nodes[this.parent.nodes.indexOf(this) - 1]; }
  get textContent() { return this.nodes.map(node => node.data ?? node.textContent).join(""); }
  set textContent(text) { this.nodes = text === "" ? [] : [{data: String(text)}]; }
  append(text) { this.nodes.push({data: text}); }
  before(text) { this.parent.nodes.splice(this.parent.nodes.indexOf(this), 0, {data: text}); }
  appendChild(child) {
    child.parent = this;
    this.nodes.push(child);
    return child;
  }
  querySelectorAll(tag) {
    const within = child => [...child.tag == tag ? [child] : [], ...child.querySelectorAll(tag)];
    return this.children.flatMap(within);
  }
  focus() { this.onfocus(); }
  click() { this.onclick(); }
}

const scripts = [...page.matchAll(/<script(?: id="(\w+)")?.*?>(.*?)<\/script>/gs)];
const elements = {};
const element = id => elements[id] ??= new Element(id);
for (const [, id, text] of scripts) if (id) element(id).textContent = text;
element("dial").appendChild(new Element("input"));

class Worker {                  // it has its own names, and answers after the page has gone on
  constructor(source) {
    const own = {atob, performance, postMessage: data => setTimeout(() => this.onmessage({data}))};
    vm.runInNewContext(source, own);
    this.postMessage = data => own.onmessage({data: structuredClone(data)});
  }
}

const document = {
  getElementById: element,
  createElement: tag => new Element(tag),
  querySelector: element,
  querySelectorAll: () => [],
};
class Blob { constructor(parts) { this.text = parts.join("\n"); } }
const URL = {createObjectURL: blob => blob.text};
const browser = vm.createContext({document, Worker, Blob, URL, performance, setTimeout});
for (const [, id, text] of scripts) if (id != "data") vm.runInContext(text, browser);

(async () => {
  const said = [];
  for (const line of lines) {
    const result = vm.runInContext(line, browser);
    while (vm.runInContext("asking || waiting || due || timer", browser))
      await new Promise(done => setTimeout(done, 1));
    said.push(result === undefined ? null : result);
  }
  console.log(JSON.stringify(said));
})();
