"use strict";
// Markdown as elements. Text only ever becomes text nodes, so nothing a model writes can become markup.
(() => {
  const make = (tag, ...children) => {
    const element = document.createElement(tag);
    element.append(...children);
    return element;
  };

  const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([\s\S]+?)\*\*|\*(\S[\s\S]*?)\*|~~([\s\S]+?)~~|\[([^\]]*)\]\((https?:[^\s)]+)\)/;

  function inline(text) {
    const out = [];
    while (text) {
      const found = INLINE.exec(text);
      if (!found) break;
      out.push(text.slice(0, found.index));
      const [whole, , code, strong, em, gone, label, href] = found;
      if (code !== undefined) out.push(make("code", code));
      else if (strong !== undefined) out.push(make("strong", ...inline(strong)));
      else if (em !== undefined) out.push(make("em", ...inline(em)));
      else if (gone !== undefined) out.push(make("del", ...inline(gone)));
      else {
        const link = make("a", ...inline(label || href));
        link.href = href;
        link.rel = "noreferrer noopener";
        link.target = "_blank";
        out.push(link);
      }
      text = text.slice(found.index + whole.length);
    }
    out.push(text);
    return out;
  }

  function code(lines, language) {
    const text = lines.join("\n");
    const copy = make("button", "Copy");
    copy.type = "button";
    copy.addEventListener("click", () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; }));
    const inner = make("code", text);
    if (language) inner.dataset.language = language;
    return make("pre", copy, inner);
  }

  const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

  function list(lines) {
    const [, indent, mark] = ITEM.exec(lines[0]);
    const element = make(/\d/.test(mark) ? "ol" : "ul");
    if (/\d/.test(mark)) element.start = parseInt(mark, 10);
    let item = [];
    const close = () => {
      if (item.length) element.append(make("li", ...(item.length > 1 ? [...inline(item[0]), blocks(item.slice(1))] : inline(item[0]))));
      item = [];
    };
    for (const line of lines) {
      const found = ITEM.exec(line);
      if (found && found[1].length <= indent.length) {
        close();
        item = [found[3]];
      } else item.push(line.slice(Math.min(line.length, indent.length + 2)));
    }
    close();
    return element;
  }

  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

  function table(lines) {
    const row = (line, tag) => make("tr", ...cells(line).map((c) => make(tag, ...inline(c))));
    return make("table", make("thead", row(lines[0], "th")), make("tbody", ...lines.slice(2).map((l) => row(l, "td"))));
  }

  function blocks(lines) {
    const out = document.createDocumentFragment();
    let at = 0;
    const take = (test) => {
      const from = at;
      while (at < lines.length && test(lines[at], at - from)) at += 1;
      return lines.slice(from, at);
    };
    while (at < lines.length) {
      const line = lines[at];
      const fence = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
      const head = /^(#{1,6})\s+(.*)$/.exec(line);
      if (fence) {
        at += 1;
        const inner = take((l) => !l.trim().startsWith(fence[1]));
        at += 1;
        out.append(code(inner, fence[2]));
      } else if (head) {
        at += 1;
        out.append(make(`h${Math.min(6, head[1].length + 1)}`, ...inline(head[2])));
      } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
        at += 1;
        out.append(make("hr"));
      } else if (ITEM.test(line)) {
        out.append(list(take((l, i) => ITEM.test(l) || (i > 0 && /^\s{2,}\S/.test(l)))));
      } else if (/^\s*>/.test(line)) {
        const inner = take((l) => /^\s*>/.test(l)).map((l) => l.replace(/^\s*>\s?/, ""));
        out.append(make("blockquote", blocks(inner)));
      } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[at + 1] || "") && (lines[at + 1] || "").includes("-")) {
        out.append(table(take((l) => l.includes("|"))));
      } else if (!line.trim()) {
        at += 1;
      } else {
        const text = take((l, i) => l.trim() && (i === 0 || !(ITEM.test(l) || /^\s*(`{3,}|~{3,}|#{1,6}\s|>)/.test(l))));
        const paragraph = make("p");
        text.forEach((l, i) => paragraph.append(...(i ? [make("br")] : []), ...inline(l)));
        out.append(paragraph);
      }
    }
    return out;
  }

  window.markdown = (text) => blocks(text.split("\n"));
})();
