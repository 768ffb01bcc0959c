// What the slider hides: a share of the units, the highest scores first.

/** How many of `total` units a share covers. */
export function takeShare(order, share) {
  return order.slice(0, Math.round(order.length * share));
}

/** The units to hide: the top share, or everything else. */
export function chooseHidden(order, share, mode) {
  const top = takeShare(order, share);
  return mode === "keep" ? order.slice(top.length) : top;
}
