// How alike two methods rank the same input.

/** How alike two methods rank this input, in words: "agrees (0.82)". */
export function describeAgreement(agreement, method, other) {
  if (!agreement || method === other) return "";
  const [row, column] = [agreement.methods.indexOf(method), agreement.methods.indexOf(other)];
  const value = agreement.matrix[row]?.[column];
  if (value === undefined || value === null) return "no ranking to compare";
  return `${nameAgreement(value)} (${value.toFixed(2)})`;
}

/** Rank correlation in words. */
export function nameAgreement(value) {
  if (value >= 0.7) return "agrees";
  if (value >= 0.3) return "agrees in part";
  if (value > -0.3) return "hardly agrees";
  return "ranks the other way";
}
