// Asks for what takes a moment once the page has been painted: one request for each value of `due`. The request is a
// state and no trigger, so that it stands until it is answered, whatever else runs before.

const asked = new WeakMap()

export default function (component) {
  const { data, parentElement, setStateValue } = component
  const due = data ? data.due : null
  if (!due || asked.get(parentElement) === due) return
  const timer = setTimeout(() => {
    asked.set(parentElement, due)
    setStateValue("asked", due)
  }, 50)
  return () => clearTimeout(timer)
}
