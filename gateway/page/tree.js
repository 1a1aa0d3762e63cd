// What is on the screen, as plain values: an element is {tag, attributes, children}, a text is a string.
// No text is ever parsed as HTML.

export const node = (tag, children = [], attributes = {}) => ({tag, attributes, children});

const drawn = new WeakMap();  // the tree that an element shows

function make(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const element = document.createElement(tree.tag);
  for (const [name, value] of Object.entries(tree.attributes)) element.setAttribute(name, value);
  drawn.set(element, tree);
  patch(element, tree.children);
  return element;
}

const same = (one, other) =>
  one?.tag === other.tag && JSON.stringify(one.attributes) === JSON.stringify(other.attributes);

// Make `parent` show these trees. Elements that stay keep what the reader did to them: a selection, a fold.
export function patch(parent, trees) {
  trees.forEach((tree, place) => {
    const there = parent.childNodes[place];
    if (there && drawn.get(there) === tree) return;
    if (!there) parent.append(make(tree));
    else if (typeof tree === "string" && there.nodeType === Node.TEXT_NODE) {
      if (there.data !== tree) there.data = tree;
    } else if (typeof tree !== "string" && same(drawn.get(there), tree)) {
      drawn.set(there, tree);
      patch(there, tree.children);
    } else there.replaceWith(make(tree));
  });
  while (parent.childNodes.length > trees.length) parent.lastChild.remove();
}
