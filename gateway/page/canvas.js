// What the drawings have in common: sharp pixels, and the colours of the style sheet.

const styles = () => getComputedStyle(document.documentElement);

export const colour = name => styles().getPropertyValue(`--${name}`).trim();

// Makes a canvas as wide as its place and `height` CSS pixels high; gives its context, in CSS pixels.
export function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
