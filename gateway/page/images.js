// Images that a reader adds to a message, as data URLs.

// Pixels of a side. Larger images are reduced: hardly a model sees more, and what is sent stays small.
const MOST = 2048;
const PLAIN = ["image/png", "image/jpeg", "image/webp", "image/gif"];  // what models read
const LARGE = 2 ** 21;  // bytes of a file that is written anew, though it has few pixels

// Throws an error that a reader understands.
export async function fromFile(file) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`'${file.name}' is no image that this browser reads.`);
  }
  const {width, height} = size(picture);
  if (width === picture.width && PLAIN.includes(file.type) && file.size <= LARGE) return asUrl(file);
  const canvas = Object.assign(document.createElement("canvas"), {width, height});
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, width, height);
  const drawn = file.type === "image/jpeg" ? "" : canvas.toDataURL("image/png");
  if (drawn && drawn.length <= LARGE) return drawn;
  // JPEG knows nothing transparent: what is, becomes white.
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

// Width and height to which a picture is reduced.
export function size({width, height}) {
  const scale = Math.min(1, MOST / Math.max(width, height));
  return {width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale))};
}

function asUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => failed(new Error(`'${file.name}' cannot be read.`)));
    reader.readAsDataURL(file);
  });
}
